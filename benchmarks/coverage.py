"""How much of published architectures can be folded, in every form that torch exports.

Usage: python -m benchmarks.coverage [--only NAME ...] [--form FORM ...] [--json out.json] [--markdown coverage.md]

For every architecture of benchmarks.zoo and every form: share of the conv/linear weights in fold groups, fold at
sparsity 0.3, run of the saved file in onnxruntime on inputs that the fold did not see, and, after every channel has
been copied (twice; one to three times), whether folding gives the original function back. Every architecture runs in
a process of its own with a time limit per form; an exception is a row of the table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, cast

import numpy as np
import onnx
import onnxruntime as ort
import torch

import onnxfold
from benchmarks.zoo import ZOO, Entry
from benchmarks.zoo.prepare import export
from benchmarks.zoo.widening import normalised, widen
from onnxfold import api
from onnxfold.budget.weights import count_parameters
from onnxfold.channels.declarations import Role
from onnxfold.channels.layers import LINEAR_OPS
from onnxfold.graph.load import load
from onnxfold.graph.view import GraphView
from onnxfold.passes.normalize import NORMALIZE
from tests.torch_zoo import FORMS, Form
from tests.widen import Array, relative_difference

SPARSITY: Final = 0.3
TOLERANCE: Final = 1e-4
ENOUGH: Final = 0.9
TIME_LIMIT: Final = 180.0
#: A fold at SPARSITY that moves the outputs of a random network less than this shows that they hardly depend on it.
BLIND: Final = 1e-3
_RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN"})
_STEPS: Final = ("export", "original", "inspect", "fold", "lossless")


@dataclass
class Row:
    """One architecture in one form; None where a step did not get that far.

    `errors` maps the step to its one-line text, `traces` to the end of the traceback. `held` lists the reasons for
    which weights lie in no group on either side, with their share of all conv/linear weights.
    """

    name: str
    form: Form
    weights: int = 0
    groups: int = 0
    outputs: float | None = None
    inputs: float | None = None
    either: float | None = None
    reached: float | None = None
    noise_error: float | None = None
    valid: bool | None = None
    normalised: float | None = None
    widened: float | None = None
    lossless: float | None = None
    uneven: float | None = None
    static_batch: bool = False
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    held: list[tuple[str, float]] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    traces: dict[str, str] = field(default_factory=dict)

    @property
    def is_lossless(self) -> bool | None:
        """Whether folding undid the widening, even and uneven; None if that was not tried."""
        return None if self.lossless is None else max(self.lossless, self.uneven or 0.0) <= TOLERANCE


# -- one architecture, in its own process ------------------------------------------------------------


def measure(name: str, form: Form, built: Entry, folder: Path) -> Row:
    """Do every step for one form; without a file, or without its groups, nothing follows."""
    row = Row(name, form)
    start = time.perf_counter()
    path = folder / f"{name}.{form}.onnx"
    steps = {
        "export": lambda: _export(row, built, path),
        "original": lambda: _check_original(row, built, path),
        "inspect": lambda: _inspect(row, path),
        "fold": lambda: _fold(row, path),
        "lossless": lambda: _widen(row, path),
    }
    for step, action in steps.items():
        try:
            action()
        except Exception as error:
            row.errors[step] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            row.traces[step] = "".join(traceback.format_exception(error)[-4:])[-1500:]
            if step in ("export", "inspect"):
                break
    row.seconds = time.perf_counter() - start
    return row


def _export(row: Row, built: Entry, path: Path) -> None:
    module, inputs = built
    try:
        export(module, inputs, path, row.form)
    except Exception as error:
        row.notes.append(f"no export with a free batch ({type(error).__name__}): exported with batch {len(inputs[0])}")
        row.static_batch = True
        export(module, inputs, path, row.form, dynamic_batch=False)


def _check_original(row: Row, built: Entry, path: Path) -> None:
    """Run the export beside torch: what does not run or differs here is not the fold's doing."""
    module, inputs = built
    feeds = {f"x{i}": x.numpy() for i, x in enumerate(inputs)}
    with torch.no_grad():
        result = module(*inputs)
    expected = [r.numpy() for r in ((result,) if isinstance(result, torch.Tensor) else result)]
    difference = relative_difference(expected, _run(path, feeds))
    if difference > 1e-3:
        row.notes.append(f"the export itself differs from torch by {difference:.1e}")


def _inspect(row: Row, path: Path) -> None:
    found = api.inspect_model(path)
    row.weights, row.groups = found.share.weights, len(found.groups)
    row.outputs, row.inputs, row.either = found.share.outputs, found.share.inputs, found.share.either
    view = load(path)
    NORMALIZE(view)
    covered: dict[tuple[str, Role], float] = defaultdict(float)
    for group in found.groups:
        for m in group.members:
            size = view.weights[m.axis.tensor].shape[m.axis.axis] * m.axis.blocks
            covered[m.axis.tensor, m.role] += m.positions.size / size
    row.held = _held_back(view, found, covered)
    unshared = count_parameters(view)
    if unshared > 1.02 * found.parameters:
        row.notes.append(f"normalising makes {unshared:,} weights of {found.parameters:,}: shared ones became several")
    recurrent = [i for n in view.nodes if n.op_type in _RECURRENT for i in n.input[1:3]]
    stay = {i for i in recurrent if covered[i, Role.PRODUCER] < 1.0}
    if stay:
        why = dict.fromkeys(_general(r.reason) for r in found.refusals if any(f"'{i}'" in r.axis for i in stay))
        row.notes.append(f"{len(stay)} of {len(recurrent)} recurrent weights stay: {'; '.join(why)}")


def _held_back(
    view: GraphView, found: api.Inspection, covered: Mapping[tuple[str, Role], float]
) -> list[tuple[str, float]]:
    """Return why weights lie in no group, on their output and on their input axis, largest share first."""
    linear = dict.fromkeys(i for n in view.nodes if n.op_type in LINEAR_OPS for i in n.input[:2] if view.is_weight(i))
    shares: Counter[str] = Counter()
    for weight in linear:
        free = 1.0 - max(covered.get((weight, role), 0.0) for role in (Role.PRODUCER, Role.CONSUMER))
        if free > 1e-9:
            why = [f"{r.axis.split(' ')[0]}: {_general(r.reason)}" for r in found.refusals if f"'{weight}'" in r.axis]
            ops = "/".join(sorted({n.op_type for n in view.consumers(weight)}))
            text = "; ".join(dict.fromkeys(why)) or "no refusal given"
            shares[f"{ops} weight, {text}"] += free * view.weight_size(weight) / max(found.share.weights, 1)  # type: ignore[assignment]
    return [(reason, float(share)) for reason, share in shares.most_common()]


def _general(reason: str) -> str:
    """Take names of nodes and tensors out of a reason."""
    return re.sub(r" '[^']*'", "", reason)


def _fold(row: Row, path: Path) -> None:
    result = onnxfold.fold(path, SPARSITY)
    row.reached = result.report.sparsity
    row.notes += [note for note in result.report.notes if not note.startswith("reached sparsity")]
    if result.report.fidelity is not None:
        row.noise_error = max(o.relative_error for o in result.report.fidelity.outputs)
        if row.noise_error < BLIND:
            row.notes.append(f"the outputs hardly depend on the weights (relative error {row.noise_error:.0e})")
    saved = result.save(path.with_suffix(".folded.onnx"))
    if "original" in row.errors:  # nothing to compare with
        return
    row.valid = False
    feeds = _feeds(path, seed=11)
    before, after = _run(path, feeds), _run(saved, feeds)
    for a, b in zip(before, after, strict=True):
        if a.shape != b.shape:
            raise AssertionError(f"output shape {a.shape} became {b.shape}")
        if not np.isfinite(b).all():
            raise AssertionError("an output is not finite")
    row.valid = True


def _widen(row: Row, path: Path) -> None:
    """Double every channel, fold by half, compare with the original; the same with one to three copies of each."""
    if row.groups == 0 or "original" in row.errors:
        return
    feeds = _feeds(path, seed=12)
    expected = _run(path, feeds)
    model = normalised(str(path))
    row.normalised = relative_difference(expected, _run(model, feeds))
    wide, _ = widen(model, 2)
    row.widened = relative_difference(expected, _run(wide, feeds))
    folded = onnxfold.fold(wide, channel_ratio=0.5, verify=False).model
    row.lossless = relative_difference(expected, _run(folded, feeds))
    uneven, ratios = widen(model, None)
    if ratios is None:
        return
    row.widened = max(row.widened, relative_difference(expected, _run(uneven, feeds)))
    folded = onnxfold.fold(uneven, channel_ratio=0.0, ratios=ratios, verify=False).model
    row.uneven = relative_difference(expected, _run(folded, feeds))


def _session(model: Path | onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _run(model: Path | onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    return cast(list[Array], _session(model).run(None, feeds))


def _feeds(path: Path, seed: int, batch: int = 3) -> dict[str, Array]:
    """Return normal noise, or small integers, of the shapes that a file declares."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for info in _session(path).get_inputs():
        shape = [d if isinstance(d, int) else batch for d in info.shape]
        floats = info.type == "tensor(float)"
        feeds[info.name] = rng.standard_normal(shape).astype(np.float32) if floats else rng.integers(0, 20, shape)
    return feeds


def _work(name: str, forms: list[Form], pipe: Connection) -> None:
    torch.set_num_threads(1)
    # Messages that torch's exporters write past Python's streams.
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    with tempfile.TemporaryDirectory() as folder:
        built = ZOO[name]()
        for form in forms:
            pipe.send(measure(name, form, built, Path(folder)))
    pipe.close()


# -- all of them -------------------------------------------------------------------------------------


@dataclass
class _Job:
    name: str
    process: BaseProcess
    forms: list[Form]
    deadline: float


def run(names: list[str], forms: list[Form], jobs: int = 1) -> Iterator[Row]:
    """Yield rows as they are done; a form that takes too long or kills its process is a row with an error."""
    # fork: every process works with the library as it was imported here, and starts at once.
    context = multiprocessing.get_context("fork")
    waiting, active = list(names), dict[Connection, _Job]()
    while waiting or active:
        while waiting and len(active) < jobs:
            name = waiting.pop(0)
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(name, forms, theirs), daemon=True)
            process.start()
            theirs.close()
            active[mine] = _Job(name, process, list(forms), time.monotonic() + TIME_LIMIT)
        ready = cast(list[Connection], wait(list(active), timeout=1.0))
        for pipe in list(active):
            job = active[pipe]
            problem = ""
            if pipe in ready:
                try:
                    row = cast(Row, pipe.recv())
                    job.forms.remove(row.form)
                    job.deadline = time.monotonic() + TIME_LIMIT
                    yield row
                except EOFError:
                    job.process.join()
                    problem = f"the process ended with code {job.process.exitcode}"
            elif time.monotonic() > job.deadline:
                problem = f"no result within {TIME_LIMIT:g} s"
            if problem:
                job.process.kill()
                del active[pipe]
                yield from (Row(job.name, form, errors={"export": problem}) for form in job.forms)


def main() -> None:
    """Run, print progress, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ZOO), metavar="NAME")
    parser.add_argument("--form", nargs="+", choices=FORMS)
    parser.add_argument("--jobs", type=int, default=1, help="architectures at a time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="default: benchmarks/coverage.md when everything is run")
    args = parser.parse_args()
    names, forms = args.only or list(ZOO), args.form or list(FORMS)
    environment = _environment()  # now: the library that runs is the one imported above
    rows: list[Row] = []
    start = time.perf_counter()
    total = len(names) * len(forms)
    for row in run(names, forms, args.jobs):
        rows.append(row)
        print(f"[{len(rows)}/{total}] {_line(row)}", flush=True)
    rows.sort(key=lambda r: (names.index(r.name), forms.index(r.form)))
    if args.json:
        args.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    target = args.markdown
    if target is None and len(names) == len(ZOO) and len(forms) == len(FORMS):
        target = Path(__file__).with_name("coverage.md")
    if target:
        target.write_text(markdown(rows, time.perf_counter() - start, environment))
    print("\n" + "\n".join(summary(rows)))
    sys.exit(any(r.errors for r in rows))


def _line(row: Row) -> str:
    parts = [f"{row.name:<18} {row.form:<12}", f"either {_percent(row.either)}", f"sparsity {_number(row.reached)}"]
    parts += [
        f"valid {_yes(row.valid)}",
        f"lossless {_power(row.lossless)} {_power(row.uneven)}",
        f"{row.seconds:.1f} s",
    ]
    return "  ".join(parts) + "".join(f"  {step}: {text[:100]}" for step, text in row.errors.items())


# -- the report --------------------------------------------------------------------------------------


def summary(rows: list[Row]) -> list[str]:
    """Return the lines that say how it went overall."""
    names = list(dict.fromkeys(r.name for r in rows))
    low = sorted({r.name for r in rows if r.either is not None and r.either < ENOUGH}, key=names.index)
    folded = [r for r in rows if r.reached is not None]
    exact = [r for r in rows if r.lossless is not None]
    uneven = [r for r in rows if r.uneven is not None]
    inspected = [r for r in rows if r.either is not None]
    lines = [
        f"- {len(names)} architectures in {len({r.form for r in rows})} forms, {len(rows)} exported files wanted, "
        f"{sum('export' not in r.errors for r in rows)} exported",
        f"- {len(names) - len(low)} architectures have at least {ENOUGH:.0%} of their conv/linear weights in groups in "
        f"every form; below: {', '.join(low) or 'none'}",
        f"- sparsity {SPARSITY} asked: {len(folded)} of {len(inspected)} files folded, "
        f"{sum(abs((r.reached or 0.0) - SPARSITY) <= 0.01 for r in folded)} within 0.01 of it; "
        f"{sum(bool(r.valid) for r in rows)} folded files run in onnxruntime with equal shapes and finite outputs",
        f"- every channel doubled, and folded by half: {sum((r.lossless or 0) <= TOLERANCE for r in exact)} of "
        f"{len(exact)} give the original outputs back to {TOLERANCE:g} of their largest entry; "
        f"with one to three copies of each: {sum((r.uneven or 0) <= TOLERANCE for r in uneven)} of {len(uneven)}",
    ]
    errors = Counter(step for r in rows for step in r.errors)
    if errors:
        lines.append("- exceptions: " + ", ".join(f"{errors[s]} in {s}" for s in _STEPS if errors[s]))
    return lines


def markdown(rows: list[Row], seconds: float, environment: list[str]) -> str:
    """Return the whole report."""
    names = list(dict.fromkeys(r.name for r in rows))
    forms = list(dict.fromkeys(r.form for r in rows))
    by_case = {(r.name, r.form): r for r in rows}
    lines = ["# Coverage of architectures", "", (__doc__ or "").split("\n\n")[2].replace("\n", " ").strip(), ""]
    lines += [f"Written by `python -m benchmarks.coverage` in {seconds / 60:.0f} minutes.", "", *summary(rows), ""]
    lines += ["## Reasons", "", "Weights in no group on either side, as part of all conv/linear weights of all files:"]
    lines += ["", "| share | files | reason |", "| ---: | ---: | --- |", *_top_reasons(rows), ""]
    head = ["architecture", "weights", *(f"either, {f}" for f in forms), "sparsity", "valid", "worst after widening"]
    lines += ["## Architectures", "", _cells(head), _cells(["---", "---:"] + ["---:"] * (len(head) - 2))]
    for name in names:
        mine = [by_case[name, form] for form in forms if (name, form) in by_case]
        reached = sorted({_number(r.reached) for r in mine if r.reached is not None})
        spread = reached[0] if len(reached) == 1 else f"{reached[0]} to {reached[-1]}" if reached else "-"
        exact = [max(r.lossless, r.uneven or 0.0) for r in mine if r.lossless is not None]
        worst = _power(max(exact)) if exact else "-"
        cells = [name, f"{max(r.weights for r in mine):,}", *(_percent(r.either) for r in mine), spread]
        lines.append(_cells([*cells, f"{sum(bool(r.valid) for r in mine)} of {len(mine)}", worst]))
    lines += ["", *_below(rows), *_exceptions(rows)]
    for form in forms:
        lines += ["", f"## {form}", ""]
        head = [
            "architecture",
            "groups",
            "outputs",
            "inputs",
            "either",
            "asked",
            "reached",
            "valid",
            "doubled",
            "1 to 3",
        ]
        lines += [_cells([*head, "notes"]), _cells(["---"] + ["---:"] * (len(head) - 1) + ["---"])]
        for r in (by_case[n, form] for n in names if (n, form) in by_case):
            cells = [r.name, str(r.groups), *map(_percent, (r.outputs, r.inputs, r.either)), f"{SPARSITY:g}"]
            remarks = [*(f"{step}: {text}" for step, text in r.errors.items()), *r.notes]
            cells += [_number(r.reached), _yes(r.valid), _power(r.lossless), _power(r.uneven), "; ".join(remarks)]
            lines.append(_cells(cells))
    lines += ["", "## Environment", "", *environment]
    return "\n".join(lines) + "\n"


def _top_reasons(rows: list[Row], limit: int = 15) -> list[str]:
    held, files = Counter[str](), Counter[str]()
    total = sum(r.weights for r in rows)
    for r in rows:
        for reason, share in r.held:
            held[reason] += round(share * r.weights)
            files[reason] += 1
    return [_cells([f"{n / total:.2%}", str(files[reason]), reason]) for reason, n in held.most_common(limit)]


def _below(rows: list[Row]) -> list[str]:
    lines = [f"## Below {ENOUGH:.0%}", "", _cells(["file", "either", "held back by"]), _cells(["---", "---:", "---"])]
    for r in rows:
        if r.either is not None and r.either < ENOUGH:
            why = "; ".join(f"{share:.0%}: {reason}" for reason, share in r.held[:3])
            lines.append(_cells([f"{r.name}, {r.form}", _percent(r.either), why]))
    return lines


def _exceptions(rows: list[Row]) -> list[str]:
    lines = ["", "## Exceptions and differences", ""]
    lines += [_cells(["file", "step", "text"]), _cells(["---", "---", "---"])]
    for r in rows:
        lines += [_cells([f"{r.name}, {r.form}", step, text]) for step, text in r.errors.items()]
        for step, value in (
            ("normalised", r.normalised),
            ("widened", r.widened),
            ("doubled", r.lossless),
            ("1 to 3", r.uneven),
        ):
            if value is not None and value > TOLERANCE:
                lines.append(_cells([f"{r.name}, {r.form}", step, f"difference {value:.1e} of the largest output"]))
    return lines


def _environment() -> list[str]:
    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "../onnxfold", "../passes")
    state = f"commit {git('rev-parse', '--short', 'HEAD')}{' with uncommitted changes' if changed else ''}"
    packages = ", ".join(f"{p} {version(p)}" for p in ("torch", "onnx", "onnxruntime", "onnxscript", "numpy"))
    return [
        f"- onnxfold {onnxfold.__version__}, {state}",
        f"- Python {platform.python_version()}, {packages}",
        f"- {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    ]


def _cells(values: list[str]) -> str:
    return "| " + " | ".join(v.replace("|", "\\|") for v in values) + " |"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _power(value: float | None) -> str:
    return "-" if value is None else f"{value:.0e}"


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "NO"


if __name__ == "__main__":
    main()
