"""Differences between two folded models: nodes, weights, outputs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import numpy_helper

#: Most that rounding may change an output, relative to its largest entry; float16 keeps three digits.
TOLERANCE = 1e-5
_ULPS = 4


def structure_difference(before: Path, after: Path) -> str:
    """Return where the nodes, or the shapes and types of weights, of two models differ, '' if nowhere."""
    a, b = (_structure(onnx.load(str(path), load_external_data=False).graph) for path in (before, after))
    if a == b:
        return ""
    return next(
        (f"{x} -> {y}" for x, y in zip(a, b, strict=False) if x != y), f"{len(a)} -> {len(b)} nodes and weights"
    )


def _structure(graph: onnx.GraphProto) -> list[str]:
    lines = []
    for g in _graphs(graph):
        lines += [f"{n.op_type} {n.name}({','.join(n.input)}) -> {','.join(n.output)}" for n in g.node]
        lines += [f"{w.name}: {w.data_type}{list(w.dims)}" for w in g.initializer]
    return lines


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the bodies in it."""
    yield graph
    for body in (a.g for n in graph.node for a in n.attribute if a.HasField("g")):
        yield from _graphs(body)


def weights_difference(before: Path, after: Path) -> str:
    """Return the first weight that differs, and by how much relative to its largest entry."""
    a, b = ([w for g in _graphs(onnx.load(str(p)).graph) for w in g.initializer] for p in (before, after))
    for x, y in zip(a, b, strict=True):
        values, others = numpy_helper.to_array(x), numpy_helper.to_array(y)
        if values.tobytes() != others.tobytes():
            return f"weight {x.name} by {relative(values, others):.2g}"
    return "no weight"


def outputs_difference(before: Path, after: Path, samples: Path) -> tuple[str, float]:
    """Return by how much outputs differ, in words, and the worst as a multiple of what rounding may change."""
    with np.load(samples) as data:
        feeds = dict(data)
    words, worst = [], 0.0
    names, values = _run(before, feeds)
    for name, x, y in zip(names, values, _run(after, feeds)[1], strict=True):
        found = relative(x, y)
        allowed = max(TOLERANCE, _ULPS * float(np.finfo(x.dtype).eps)) if x.dtype.kind == "f" else 0.0
        worst = max(worst, found / allowed if allowed else float(found > 0.0) * 2.0)
        words.append(f"output {name} by {found:.2g}")
    return ", ".join(words), worst


def _run(path: Path, feeds: Mapping[str, NDArray[Any]]) -> tuple[list[str], list[NDArray[Any]]]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [o.name for o in session.get_outputs()], [np.asarray(y) for y in session.run(None, dict(feeds))]


def relative(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the largest difference over the largest entry of `a`; infinite where shapes, or NaNs, differ."""
    if a.shape != b.shape:
        return float("inf")
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(x - y)).max(initial=0.0)
    scale = float(np.abs(x[np.isfinite(x)]).max(initial=0.0))
    if not np.isfinite(apart):
        return float("inf")
    return float(apart) / scale if scale else (float("inf") if apart else 0.0)
