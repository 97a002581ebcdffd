"""Layers in the names of caches, as in past_key_values.7.key: the number of the layer, and new numbers."""

import re
from collections.abc import Collection, Sequence

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
    return {name: _with_number(name, place, numbers[layer]) for name, layer in stay if numbers[layer] != layer}


def _layers(caches: Sequence[str]) -> tuple[int, list[int]]:
    """Return which number in the names is that of the layer, the one that differs most, and all of them."""
    numbers = [[int(digits) for digits in _NUMBER.findall(name)] for name in caches]
    if not numbers or not all(numbers) or len(set(map(len, numbers))) > 1:
        return 0, []
    columns = [list(column) for column in zip(*numbers, strict=True)]
    place = max(range(len(columns)), key=lambda i: len(set(columns[i])))
    return place, columns[place]


def _with_number(name: str, place: int, number: int) -> str:
    match = list(_NUMBER.finditer(name))[place]
    return f"{name[: match.start()]}{number}{name[match.end() :]}"
