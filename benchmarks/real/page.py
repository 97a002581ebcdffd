"""The page of real files."""

import re
from typing import Any

from benchmarks.coverage.text import table_row

Row = dict[str, Any]
_HEAD = """# Real files at 30 %

Reproduce with `python -m benchmarks.real --models ../shared/real --data ../shared/data`. Every fold is the command with
`--sparsity 0.3` in a process of its own; *seconds* are of a processor, on one thread.

## Folded or refused

Folded by few generated inputs (`--samples 4 --input-seconds 5 --no-verify`), then loaded and run in onnxruntime.

"""
_IMAGES = """
## What is kept of real images

By defaults, and with `--calibration` of other images (100 where they are small), both with `--force`. *Printed* is the
verdict of the fold; *true* is that of `onnxfold compare` on 50 images (fewer where they are large) that no fold saw.
A verdict **vouches** where it says "keeps" and the truth is damaged or destroyed.

"""
_FILES = ("file", "result", "reason", "code", "runs in onnxruntime", "seconds")
_JUDGED = ("file", "folded on", "printed", "true", "images", "code", "seconds", "")


def render(rows: dict[str, list[Row]]) -> str:
    """Return the page of rows."""
    files, images = rows.get("files", []), rows.get("images", [])
    folded = [row for row in files if row["code"] == 0]
    refused = [row for row in files if row["code"]]
    late, run = len(files) - len(folded) - len(refused), sum(row["runs"] == "yes" for row in folded)
    said = f"Of {len(files)} files, {len(folded)} fold, {run} of which run in onnxruntime; {len(refused)} are refused"
    lines = [
        said + (f", and {late} did not end in time." if late else "."), "",
        table_row(list(_FILES)), table_row(["---"] * len(_FILES)), *map(_file, files),
    ]  # fmt: skip
    if images:
        judged = [row for row in images if row["state"]]
        vouched, networks = sum(map(vouches, judged)), len({row["file"] for row in judged})
        counted = f"Of {len(judged)} verdicts on the {networks} networks measured so far, {vouched} vouch"
        lines += [
            _IMAGES, f"{counted}{'es' if vouched == 1 else ''}.", "",
            table_row(list(_JUDGED)), table_row(["---"] * len(_JUDGED)), *map(_judged, images),
        ]  # fmt: skip
    return _HEAD + "\n".join(lines) + "\n"


def vouches(row: Row) -> bool:
    """Return whether a fold said that answers are kept, and they are not."""
    return row["verdict"].startswith("verdict: keeps") and row["state"] in ("damaged", "destroyed")


def _file(row: Row) -> str:
    result = "folded" if row["code"] == 0 else "refused" if row["code"] else "not done"
    runs = row["runs"]
    if runs not in ("", "yes") and row.get("original runs") != "yes":
        runs = "no, and the original does not: " + runs
    return table_row([row["file"], result, _cut(row["reason"]), _code(row), _cut(runs), f"{row['seconds']:.1f}"])


def _judged(row: Row) -> str:
    end = "**vouches**" if vouches(row) else ""
    printed = row["verdict"] or _cut(row["reason"])
    cells = [row["file"], row["inputs"], _said(printed), _said(row["true"]), str(row["samples"]), _code(row)]
    return table_row([*cells, f"{row['seconds']:.1f}", end])


def _code(row: Row) -> str:
    return "" if row["code"] is None else str(row["code"])


def _said(verdict: str) -> str:
    return re.sub(r", measured on .* given data$", "", verdict.removeprefix("verdict: "))


def _cut(text: str) -> str:
    return text.removeprefix("error: ").replace("|", "/")[:200]
