"""Provenance of a model: the list of runs that made it, in its metadata; and its hash as it stands in a view."""

import hashlib
import json
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

from onnxfold.graph.nodes import captured_names
from onnxfold.graph.tensors import pieces_of, raw_bytes, type_of
from onnxfold.graph.view import GraphView

KEY = "onnxfold"


def add_run(model: ModelProto, run: dict[str, Any]) -> None:
    """Append a run to the entry `onnxfold` of `metadata_props`, a JSON list, oldest first."""
    kept = [prop for prop in model.metadata_props if prop.key == KEY]
    earlier = [run for prop in kept for run in _runs_of(prop.value)]
    entry = kept[0] if kept else model.metadata_props.add(key=KEY)
    entry.value = json.dumps([*earlier, run], sort_keys=True)


def is_made_here(path: Path) -> bool:
    """Whether a file is a model with such an entry."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception:  # whatever is wrong with it, it is none
        return False
    return any(prop.key == KEY for prop in model.metadata_props)


def _runs_of(text: str) -> list[dict[str, Any]]:
    """Return the runs of an entry; other text than onnxfold writes is a run of its own, so that nothing is lost."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        entry = None
    if isinstance(entry, list) and all(isinstance(run, dict) for run in entry):
        return entry
    return [{"unknown": text}] if text else []


def fingerprint(view: GraphView) -> str:
    """Return the SHA-256 of nodes, names, shapes and weights, those of open bodies included."""
    hashed = hashlib.sha256(view.model.SerializeToString(deterministic=True))
    hashed.update(repr(sorted(view.input_shapes.items())).encode())
    captured = {name for node in view.nodes for name in captured_names(node)}
    for name in sorted({*view.weights, *captured}):
        weight = view.find_weight(name)
        if weight is None:
            continue
        hashed.update(f"\n{name}:{type_of(weight)}:{tuple(weight.shape)}:".encode())
        for piece in pieces_of(weight):
            if piece.dtype == object:  # texts
                hashed.update(repr(piece.tolist()).encode())
            else:
                hashed.update(raw_bytes(piece))
    return hashed.hexdigest()
