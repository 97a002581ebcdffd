"""Differences between the results of two revisions, case by case, and whether they are rounding only."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.same_bytes.model_differences import outputs_difference, structure_difference, weights_difference

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """A case whose results differ.

    Parameters
    ----------
    case : str
        Its name.
    what : str
        The first of 'crash', 'error', 'widths', 'graph', 'weights', 'file', 'report', 'text' that differs.
    details : str
        Where, and by how much.
    is_rounding : bool
        Whether nothing but numbers differs: widths, nodes and words are the same, outputs within the tolerance.
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
    if "crash" in after:  # an equal one on both sides is broken all the same
        return Difference(case, "crash", after["crash"])
    keys = {key for key in (*before, *after) if before.get(key) != after.get(key)}
    if not same_version and "graph" in after:
        keys -= {"file"}
    if not keys:
        return None
    if keys & {"error", "crash"}:
        told = [side.get("error") or side.get("crash") or "no error" for side in (before, after)]
        return Difference(case, "error", " -> ".join(told))
    if _widths(before) != _widths(after):
        pairs = zip(_widths(before), _widths(after), strict=False)
        return Difference(case, "widths", next((f"{a} -> {b}" for a, b in pairs if a != b), "another number of groups"))
    found: list[tuple[str, str, bool]] = []
    if "graph" in keys:
        found.append(_models_difference(folders[0] / f"{case}.onnx", folders[1] / f"{case}.onnx", samples))
    elif "file" in keys:
        found.append(("file", "other bytes", False))
    if "report" in keys:
        entries = list(entries_that_differ(before.get("report"), after.get("report")))
        names = [path for path, _ in entries]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        found.append(("report", f"report: {', '.join(names[:4])}{more}", all(is_number for _, is_number in entries)))
    if "text" in keys:
        texts = str(before.get("text")), str(after.get("text"))
        found.append(("text", _first_line(*texts), without_numbers(texts[0]) == without_numbers(texts[1])))
    details = "; ".join(text for _, text, _ in found)
    return Difference(case, found[0][0], details, is_rounding=all(is_rounding for *_, is_rounding in found))


def _models_difference(before: Path, after: Path, samples: Path) -> tuple[str, str, bool]:
    structure = structure_difference(before, after)
    if structure:
        return "graph", structure, False
    outputs, worst = outputs_difference(before, after, samples)
    return "weights", f"{weights_difference(before, after)}, {outputs}", worst <= 1.0


def _widths(result: Result) -> list[tuple[str, int, int]]:
    report = result.get("report")
    groups = report["groups"] if isinstance(report, dict) and "groups" in report else []
    return [(g["name"], g["width"], g["folded_width"]) for g in groups]


def _first_line(before: str, after: str) -> str:
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    return next((f"{a[:200]} -> {b[:200]}" for a, b in pairs if a != b), "one is longer")


def entries_that_differ(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the path of every entry that differs, and whether only numbers do: those with a fraction, or in text."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            inner = f"{path}.{key}".lstrip(".")
            if key in before and key in after:
                yield from entries_that_differ(before[key], after[key], inner)
            else:
                yield f"{inner} ({'gone' if key in before else 'new'})", False
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from entries_that_differ(*pair, f"{path}[{index}]")
    elif before != after:
        floats = isinstance(before, float) and isinstance(after, float)
        texts = isinstance(before, str) and isinstance(after, str) and without_numbers(before) == without_numbers(after)
        yield path, floats or texts


def without_numbers(text: str) -> str:
    """Return text with one sign in place of every number."""
    return re.sub(r"\d+([.,]\d+)*(e[-+]?\d+)?", "#", text)
