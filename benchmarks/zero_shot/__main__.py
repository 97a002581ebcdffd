"""Zero-shot accuracy of a folded decoder and of its rivals: BoolQ, WinoGrande, ARC-easy, ARC-challenge.

Usage: python -m benchmarks.zero_shot --decoder DIR --data DIR --python PYTHON [--rows NAME ...] [--questions N]
           [--page FILE.md]

DIR is a folder as onnxruntime-genai's builder writes it, in float32. PYTHON runs benchmarks/zero_shot/harness.py, which
says what its environment needs and what lies in DIR with data. Each row is a fold, and the questions that it answers;
rows are kept beside the page as they are done, and rows that are there stay. A fold of SmolLM2-135M takes some minutes.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnxfold
from benchmarks.coverage.text import table_row
from benchmarks.language_models.generation import speed
from onnxfold.files import write

_HARNESS = Path(__file__).with_name("harness.py")
DENSE = "dense"
#: Options of a fold by the name of a row.
ROWS: dict[str, dict[str, Any]] = {
    DENSE: {},
    **{f"fold-ls {s:.0%}": {"sparsity": s} for s in (0.1, 0.2, 0.3)},
    **{f"fold-ls {s:.0%}, refined": {"sparsity": s, "refine": "all"} for s in (0.1, 0.2)},
    **{
        f"{method} {s:.0%}": {"sparsity": s, "method": method}
        for s in (0.1, 0.2)
        for method in ("wanda-sp", "flap", "slicegpt", "shortgpt", "prune-l2", "fold-ar")
    },
    "fold-ar 10%, norms tuned": {"sparsity": 0.1, "method": "fold-ar", "refine": "norms"},
}
_COLUMNS = {"boolq": "BoolQ", "winogrande": "WinoGrande", "arc_easy": "ARC-easy", "arc_challenge": "ARC-challenge"}
_HEAD = """# Zero-shot tasks

Reproduce with `python -m benchmarks.zero_shot --decoder DIR --data DATA --python PYTHON`. The decoder of the folder
`{name}`, SmolLM2-135M-Instruct, and folds of it to which no data was shown, on the paper's four tasks, in percent:
EleutherAI's lm-evaluation-harness over onnxruntime, the first {questions} questions of each file, the same for all
rows. Chance is 50 % of BoolQ and WinoGrande and 25 % of ARC; always *yes* is right for {yes:.0f} % of these questions
of BoolQ, whose passages are shorter than the task's own. So ARC-easy alone tells rows of this network apart: BoolQ
rises where a fold says *yes* more often. Behind an average stands its standard error, that of a task is 2.2 points.
Speed is tokens per second in onnxruntime-genai as a ratio to the original's, taken in turn; seconds of folds are those
of a machine that had other work. The paper's network is LLaMA-7B, fifty times as large: these rows compare with each
other and not with the paper's. Rows that the command knows and that are missing here were not measured yet.

"""


def measure(folder: Path, options: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return accuracies by task in percent, what was removed, seconds of the fold, and tokens per second."""
    began = time.perf_counter()
    with TemporaryDirectory() as place:
        target, record = folder, {"removed": 0.0, "seconds": 0, "speed": {}}
        if options:
            result = onnxfold.fold(folder, verify=False, **options)
            target = Path(place) / "folded"
            result.save(target)
            record = {"removed": result.report.sparsity, "seconds": round(time.perf_counter() - began)}
            del result
            record["speed"] = speed(folder, target)
        answers = Path(place) / "answers.json"
        command = [arguments.python, _HARNESS, target, "--data", arguments.data, "--out", answers]
        subprocess.run([*command, "--questions", str(arguments.questions)], check=True, stdout=subprocess.DEVNULL)
        return {"tasks": json.loads(answers.read_text()), **record}


def average(tasks: dict[str, Any]) -> tuple[float, float]:
    """Return the mean accuracy of some tasks, in percent, and its standard error."""
    values = list(tasks.values())
    variances = [task["acc"] * (100 - task["acc"]) / task["questions"] for task in values]
    return sum(task["acc"] for task in values) / len(values), sum(variances) ** 0.5 / len(values)


def page(rows: dict[str, dict[str, Any]], head: str) -> str:
    """Return the page, with the rows that were measured."""
    columns = ["", "removed", *_COLUMNS.values(), "average", "speed", "fold, s"]
    lines = [columns, ["---"] * len(columns)]
    for name in ROWS:
        if name in rows:
            row = rows[name]
            mean, error = average(row["tasks"])
            ratio = f"{row['speed']['ratio']:.2f} x" if row["speed"] else ""
            points = [f"{row['tasks'][task]['acc']:.1f}" for task in _COLUMNS]
            took = str(row["seconds"]) if row["seconds"] else ""
            lines.append([name, f"{row['removed']:.1%}", *points, f"{mean:.1f} ± {error:.1f}", ratio, took])
    return head + "\n".join(map(table_row, lines)) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fold, ask, keep rows, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decoder", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, metavar="NAME")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--page", type=Path, default=Path("benchmarks/zero_shot.md"))
    options = parser.parse_args(arguments)
    store = options.page.with_suffix(".json")
    rows: dict[str, Any] = json.loads(store.read_text()) if store.is_file() else {}
    for name in options.rows:
        if name not in rows:
            rows[name] = measure(options.decoder, ROWS[name], options)
            print(name, rows[name], flush=True)
            write({store: f"{json.dumps(rows, indent=1)}\n".encode()})
    lines = (options.data / "boolq_eraser_dev.jsonl").read_text().splitlines()[: options.questions]
    yes = 100 * sum(json.loads(line)["answer"] for line in lines) / len(lines)
    head = _HEAD.format(name=options.decoder.name, questions=options.questions, yes=yes)
    write({options.page: page(rows, head).encode()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
