"""Heads in the caches of a language model: how many there are, and where they lie on its inputs and outputs.

A cache is (batch, heads, length, size), or (2, batch, heads, length, size) with keys and values together.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from onnxfold.channels.declarations import Axis, Tie
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.interface import Purpose, fixed_past, token_interface

#: Words in the names of outputs that continue caches.
_CACHED = re.compile(r"present|past|cache|(^|[./])kv|new_", re.IGNORECASE)

#: Heads by cache, None where their number is not stated.
Heads = Mapping[str, int | None]

_RANKS = (4, 5)
_HEADS = -3


def cache_heads(view: GraphView) -> Heads:
    """Return the number of heads in every cache that a model reads."""
    interface = token_interface(view)
    caches = [] if interface is None else interface.inputs_for(Purpose.CACHE)
    return {cache.name: cache.shape[_HEADS] for cache in caches if len(cache.shape) in _RANKS}


def cache_ties(view: GraphView, *, per_layer: bool) -> list[Tie]:
    """Return the axes of heads in caches, as those that may change; a note says so where there are none."""
    read = cache_heads(view)
    written = cache_outputs(view.output_names) if read else ()
    shapes = {name: view.shape(name) or () for name in (*read, *written)}
    heads = {Axis(name, len(s) + _HEADS): s[_HEADS] for name, s in shapes.items() if len(s) in _RANKS}
    interface = token_interface(view)
    why = ""
    if interface is None or not heads:
        why = "it has none"
    elif None in heads.values():
        why = "it does not state how many heads all of them hold; give --input-shapes"
    elif fixed_past(interface):
        why = "their length is fixed"
    if why:
        note = f"no cache of the model changes: {why}"
        view.notes.extend([] if note in view.notes else [note])
        return []
    if per_layer:
        return [Tie((axis,)) for axis in heads]
    return [Tie(tuple(a for a in heads if heads[a] == count)) for count in sorted({h or 0 for h in heads.values()})]


def cache_outputs(outputs: Iterable[str]) -> tuple[str, ...]:
    """Return the outputs that hold caches, by their names."""
    return tuple(name for name in outputs if _CACHED.search(name))


def comparable_outputs(outputs: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the outputs of a model that another one, perhaps with fewer layers, has too, and that mean the same."""
    if list(outputs) == list(others):
        return list(outputs)
    states = cache_outputs(outputs)
    return [name for name in outputs if name in others and name not in states]


_NUMBER = re.compile(r"\d+")


def layers_left(caches: Sequence[str], removed: Collection[str]) -> tuple[int, list[int]] | None:
    """Return how many layers have caches, and which of these, counted from 0, keep some; None if names do not tell."""
    _, layers = _layers(caches)
    stay = {layer for name, layer in zip(caches, layers, strict=False) if name not in removed}
    every = sorted(set(layers))
    return (len(every), [i for i, layer in enumerate(every) if layer in stay]) if every else None


def renumber_caches(caches: Sequence[str], removed: Collection[str]) -> dict[str, str]:
    """Return new names for the caches that stay, so that the numbers of their layers have no gap."""
    place, layers = _layers(caches)
    stay = [(name, layer) for name, layer in zip(caches, layers, strict=False) if name not in removed]
    numbers = dict(zip(sorted({layer for _, layer in stay}), sorted(set(layers)), strict=False))
    digits = {name: list(_NUMBER.finditer(name))[place] for name, _ in stay}
    return {
        name: f"{name[: digits[name].start()]}{numbers[layer]}{name[digits[name].end() :]}"
        for name, layer in stay
        if numbers[layer] != layer
    }


def _layers(caches: Sequence[str]) -> tuple[int, list[int]]:
    """Return which number in the names is that of the layer, the one that differs most, and all of them."""
    numbers = [[int(digits) for digits in _NUMBER.findall(name)] for name in caches]
    if not numbers or not all(numbers) or len(set(map(len, numbers))) > 1:
        return 0, []
    columns = [list(column) for column in zip(*numbers, strict=True)]
    place = max(range(len(columns)), key=lambda i: len(set(columns[i])))
    return place, columns[place]
