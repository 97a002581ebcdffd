"""Configurations of a folder, as its copy states them after heads of caches or layers of its model went."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxfold.files import Entry
from onnxfold.folders.model_folder import GENAI, TRANSFORMERS, ModelFolder, part_of, read_config
from onnxfold.inputs.tokens.cache_heads import Heads
from onnxfold.inputs.tokens.tokenizer import NAME, pair_of

#: Whole groups of heads go: every head of keys and values with all query heads that read it. So their ratio stays, and
#: where all layers keep equally many, one number says it for all. `num_attention_heads` of ``config.json`` stays,
#: because libraries divide `hidden_size` by it for the size of a head.
_QUERIES = "num_attention_heads"
#: Heads of keys and values, in Falcon at last; and layers, in GPT-2 and others at last.
_SHARED = ("num_key_value_heads", "num_kv_heads")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
#: A list with an entry per layer.
_PER_LAYER = "layer_types"
#: Changes a configuration, given its name, in place; returns a note on what it could not state.
Edit = Callable[[str, dict[str, Any]], str]


def configs_of(folder: ModelFolder) -> list[str]:
    """Return the names of the configurations that a folder holds."""
    return [name for name in (GENAI, TRANSFORMERS) if (folder.root / name).is_file()]


def with_configs(folder: ModelFolder, edit: Edit) -> tuple[ModelFolder, tuple[str, ...]]:
    """Return a folder whose copy holds changed configurations, and notes."""
    edited: dict[Path, bytes] = {}
    notes = []
    for name in configs_of(folder):
        path = Path(os.path.realpath(folder.root / name))
        place = path.relative_to(folder.root)
        config = json.loads(folder.edited[place]) if place in folder.edited else read_config(path)
        notes.append(edit(name, config))
        edited[place] = _format_like(path, config)
    return replace(folder, edited={**folder.edited, **edited}), tuple(filter(None, notes))


def parts_of(name: str, config: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the parts that may state numbers: of genai's the decoder, of the other that about text, and the whole."""
    return (part_of(config, "model", "decoder"),) if name == GENAI else (part_of(config, "text_config"), config)


def _format_like(path: Path, config: dict[str, Any]) -> bytes:
    """Return a configuration with the indentation and the end that its file has."""
    text = path.read_text(encoding="utf-8", errors="replace")
    indentation = re.search(r"\n([ \t]+)\"", text)
    written = json.dumps(config, indent=indentation.group(1) if indentation else None, ensure_ascii=False)
    return (written + text[len(text.rstrip()) :]).encode()


def with_changes(
    folder: ModelFolder | None, before: Heads, after: Heads, layers: tuple[int, list[int]] | None
) -> tuple[ModelFolder | None, tuple[str, ...]]:
    """Return the folder, if there is one, with its configurations, and notes on what changed."""
    counts = Counter((after.get(name), heads) for name, heads in before.items() if after.get(name) != heads)
    notes = tuple(f"heads in {count} caches: {new} in place of {old}" for (new, old), count in counts.items())
    if folder is None:
        return None, notes
    folder, head_notes = with_heads(folder, before, after)
    folder, layer_notes = (folder, ()) if layers is None else with_layers(folder, *layers)
    return folder, (*notes, *head_notes, *layer_notes)


def with_heads(folder: ModelFolder, before: Heads, after: Heads) -> tuple[ModelFolder, tuple[str, ...]]:
    """Return a folder whose copy states the heads of a folded model, and notes on what no configuration can state."""
    if before == after:
        return folder, ()
    names = configs_of(folder)
    was, is_now = set(before.values()), set(after.values())
    if len(was) != 1 or len(is_now) != 1:
        unequal = "layers keep different numbers of heads of keys and values, which no configuration states"
        return folder, (f"{unequal}: {' and '.join(names)} stayed; a runtime must read them from the model",)
    old, new = was.pop() or 0, is_now.pop() or 0

    def edit(name: str, config: dict[str, Any]) -> str:
        parts = parts_of(name, config)
        stated = [(part, key) for part in parts for key in _SHARED if key in part]
        part, key = stated[0] if stated else (parts[-1], _SHARED[0])
        part[key] = new
        if name == GENAI:
            queries = part.get(_QUERIES)
            if isinstance(queries, int) and old and queries % old == 0:
                part[_QUERIES] = queries // old * new
        elif not stated:
            return f"{name} stated no {key}: libraries that take {_QUERIES} for it cannot run this model"
        return ""

    return with_configs(folder, edit)


def with_layers(folder: ModelFolder, before: int, left: list[int]) -> tuple[ModelFolder, tuple[str, ...]]:
    """Return a folder whose copy states how many layers are left, and notes on what could not be stated."""

    def edit(name: str, config: dict[str, Any]) -> str:
        is_stated = any(_state(part, before, left) for part in parts_of(name, config))
        return "" if is_stated else f"{name} did not state {before} layers, and stayed as it is"

    return with_configs(folder, edit)


def _state(part: dict[str, Any], before: int, left: list[int]) -> bool:
    """Write the number to where it stands; return whether it stood there."""
    key = next((key for key in _LAYERS if part.get(key) == before), None)
    if key is None:
        return False
    part[key] = len(left)
    each = part.get(_PER_LAYER)
    if isinstance(each, list) and len(each) == before:
        part[_PER_LAYER] = [each[i] for i in left]
    sliding = part_of(part, "sliding_window")
    if isinstance(sliding.get("layers"), list):
        sliding["layers"] = [left.index(i) for i in sliding["layers"] if i in left]
    return True


#: Configurations that name ids of tokens, and files of slow tokenizers, which hold what ``tokenizer.json`` holds.
_NAMING = (GENAI, TRANSFORMERS, "generation_config.json", "tokenizer_config.json")
_IDS_BY_TOKEN, _TOKENS, _MERGES = ("vocab.json", "added_tokens.json"), "vocab.txt", "merges.txt"
#: Ids in these are of tokens that may be gone.
_LISTS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")
#: The same vocabulary in a form that is not written here.
_OTHER_FORMS = (".model", ".tiktoken")


def ids_named(folder: ModelFolder) -> set[int]:
    """Return the ids that the configurations of a folder give tasks."""
    named: set[int] = set()

    def note(key: str, value: Any) -> Any:
        named.update(i for i in (value if isinstance(value, list) else [value]) if type(i) is int and key not in _LISTS)
        return value

    for entry in folder.entries:
        if entry.place.name in _NAMING and not entry.is_folder:
            _map_ids(read_config(folder.root / entry.place), note)
    return named


def with_vocabulary(
    folder: ModelFolder, tokenizer: dict[str, Any], new: Mapping[int, int]
) -> tuple[ModelFolder, tuple[str, ...]]:
    """Return a folder whose copy holds a smaller vocabulary: `new` ids by old ones; and notes on what it leaves out."""
    edited: dict[Path, bytes] = {Path(NAME): json.dumps(tokenizer, indent=2).encode()}
    files = [entry for entry in folder.entries if not entry.is_folder]
    for entry in files:
        path, name = folder.root / entry.place, entry.place.name
        if name in _NAMING:
            config = _map_ids(read_config(path), lambda key, value: _renumber(value, new), len(new))
            edited[entry.place] = _format_like(path, config)
        elif name in _IDS_BY_TOKEN:
            edited[entry.place] = _format_like(
                path, {t: new[i] for t, i in read_config(path).items() if type(i) is int and i in new}
            )
        elif name == _TOKENS:
            lines = path.read_bytes().split(b"\n")
            edited[entry.place] = b"".join(line + b"\n" for i, line in enumerate(lines) if i in new)
        elif name == _MERGES:
            pairs = (" ".join(pair_of(merge)) for merge in tokenizer["model"].get("merges") or ())
            edited[entry.place] = "\n".join(["#version: 0.2", *pairs, ""]).encode()
    left_out = tuple(entry for entry in files if entry.place.suffix in _OTHER_FORMS)
    entries = [entry for entry in folder.entries if entry not in left_out]
    if all(entry.place != Path(NAME) for entry in entries):
        entries.append(Entry(Path(NAME)))
    notes = tuple(
        f"'{entry.place}' is left out: it holds the whole vocabulary; {NAME} has what is left" for entry in left_out
    )
    return replace(folder, entries=tuple(entries), edited={**folder.edited, **edited}), notes


def _map_ids(config: Any, change: Callable[[str, Any], Any], size: int | None = None) -> Any:
    """Return a configuration with changed values where these are ids, and another size of the vocabulary."""
    if not isinstance(config, dict):
        return [_map_ids(entry, change, size) for entry in config] if isinstance(config, list) else config
    mapped = {}
    for key, value in config.items():
        if key.endswith("token_id") or key in _LISTS:
            mapped[key] = change(key, value)
        elif key == "added_tokens_decoder" and isinstance(value, dict):
            mapped[key] = {str(change(key, int(i))): token for i, token in value.items() if i.isdecimal()}
        else:
            mapped[key] = size if key == "vocab_size" and size is not None else _map_ids(value, change, size)
    return mapped


def _renumber(value: Any, new: Mapping[int, int]) -> Any:
    """Return the new id, or a list of those that stay; what is no id of a token stays."""
    if isinstance(value, list):
        return [_renumber(i, new) for i in value if type(i) is not int or i in new]
    return new.get(value, value) if type(value) is int else value
