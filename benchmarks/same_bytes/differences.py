"""Differences between the results of two revisions, case by case, and whether they are rounding only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """A case whose results differ.

    Parameters
    ----------
    case : str
        Its name.
    what : str
        The first of 'error', 'widths', 'graph', 'weights', 'file', 'report', 'text' that differs.
    details : str
        Where, and by how much.
    is_rounding : bool
        Whether widths and names are the same and outputs within the tolerance.
    """

    case: str
    what: str
    details: str
    is_rounding: bool = False


def compare_case(
    case: str, before: Result, after: Result, folders: tuple[Path, Path], samples: Path, *, same_version: bool
) -> Difference | None:
    """Return the difference between two results of one case, None if there is none.

    Parameters
    ----------
    case : str
        Its name.
    before, after : dict
        What the two sides wrote.
    folders : pair of Path
        Where their folded models are.
    samples : Path
        The ``.npz`` file of what the model is run on.
    same_version : bool
        Whether both are the same version of onnxfold: other versions stand in files.
    """
    keys = [k for k in {**before, **after} if same_version or k != "file" or "graph" not in before]
    different = [key for key in keys if before.get(key) != after.get(key)]
    if not different:
        return None
    if "error" in different:
        return Difference(case, "error", f"{before.get('error', 'no error')} -> {after.get('error', 'no error')}")
    if _widths(before) != _widths(after):
        pairs = zip(_widths(before), _widths(after), strict=False)
        first = next((f"{a} -> {b}" for a, b in pairs if a != b), "another number of groups")
        return Difference(case, "widths", first)
    in_report = list(paths_that_differ(before.get("report"), after.get("report")))
    if "graph" in before and before["graph"] != after["graph"]:
        models = [folder / f"{case}.onnx" for folder in folders]
        structure = structure_difference(*models)
        if structure:
            return Difference(case, "graph", structure)
        details, worst = outputs_difference(*models, samples)
        told = f"{weights_difference(*models)}; {details}{_listed(in_report)}"
        strict = [path for path, is_number in in_report if not is_number]
        return Difference(case, "weights", told, is_rounding=worst <= 1.0 and not strict)
    if in_report:
        return Difference(case, "report", _listed(in_report).lstrip("; "))
    return Difference(case, different[0], _first_line(str(before.get(different[0])), str(after.get(different[0]))))


def _widths(result: Result) -> list[tuple[str, int, int]]:
    report = result.get("report")
    groups = report["groups"] if isinstance(report, dict) and "groups" in report else []
    return [(g["name"], g["width"], g["folded_width"]) for g in groups]


def _first_line(before: str, after: str) -> str:
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    return next((f"{a[:200]} -> {b[:200]}" for a, b in pairs if a != b), "one is longer")


def _listed(paths: list[tuple[str, bool]]) -> str:
    names = [path for path, _ in paths]
    return f"; report: {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}" if names else ""


def paths_that_differ(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the paths of entries that differ, and whether only numbers with a fraction do, alone or in text."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            if key in before and key in after:
                yield from paths_that_differ(before[key], after[key], f"{path}.{key}".lstrip("."))
            else:
                yield f"{path}.{key}".lstrip(".") + (" (gone)" if key in before else " (new)"), False
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from paths_that_differ(*pair, f"{path}[{index}]")
    elif before != after:
        yield path, _without_numbers(before) == _without_numbers(after)


def _without_numbers(value: Any) -> str:
    """Return text without its digits; a float without its value."""
    if isinstance(value, float):
        return "a number"
    text = str(value)
    return "".join("0" if c.isdigit() else c for c in text) if isinstance(value, str) else text


def structure_difference(before: Path, after: Path) -> str:
    """Return where the nodes, or the shapes and types of weights, of two models differ, '' if nowhere."""
    a, b = (_structure(onnx.load(str(path), load_external_data=False)) for path in (before, after))
    if a == b:
        return ""
    return next(
        (f"{x} -> {y}" for x, y in zip(a, b, strict=False) if x != y), f"{len(a)} -> {len(b)} nodes and weights"
    )


def _structure(model: onnx.ModelProto) -> list[str]:
    nodes = [f"{n.op_type} {n.name}({','.join(n.input)}) -> {','.join(n.output)}" for n in model.graph.node]
    return nodes + [f"{w.name}: {w.data_type}{list(w.dims)}" for w in model.graph.initializer]


def weights_difference(before: Path, after: Path) -> str:
    """Return the first weight that differs, and by how much relative to its largest entry."""
    a, b = (onnx.load(str(path)).graph.initializer for path in (before, after))
    for x, y in zip(a, b, strict=True):
        values, others = numpy_helper.to_array(x), numpy_helper.to_array(y)
        if values.tobytes() != others.tobytes():
            return f"weight {x.name} by {relative(values, others):.2g}"
    return "no weight of the main graph"


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
