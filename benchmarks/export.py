"""Exports to TFLite: same outputs in three runtimes, and time, memory, size and latency beside onnx2tf.

Usage: python -m benchmarks.export --tflite-runtime PYTHON --tflite-micro PYTHON --onnx2tf PROGRAM
           [--only NAME ...] [--out benchmarks/export.md]

The runtimes that need environments of their own are given by their interpreters:
    python3.11 -m venv rt   && rt/bin/pip install tflite-runtime==2.14.0 "numpy<2"
    python3.11 -m venv tflm && tflm/bin/pip install tflite-micro
    python3.12 -m venv o2t  && o2t/bin/pip install onnx2tf
Every network is exported dense and folded at 50 % (fold-ar); nothing is left out: what is refused or differs is a row.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import onnxfold
from benchmarks.zoo import ZOO
from benchmarks.zoo.prepare import export as export_zoo
from onnxfold.errors import OnnxFoldError
from onnxfold.export.api import open_model
from onnxfold.export.fusion import PREPARE
from onnxfold.export.parity import TOLERANCE, reference_inputs, run_reference, to_layout
from onnxfold.export.tflite.convert import Converted, convert
from onnxfold.graph.view import GraphView
from tests import torch_zoo

SPARSITY = 0.5
DATA = Path(onnxfold.__file__).parent / "data"
RUNNER = Path(__file__).with_name("export_runner.py")
RUNTIMES = ("ai_edge_litert", "tflite_runtime", "tflite_micro")
#: Bytes that TensorFlow Lite Micro may use for activations on this machine.
_ARENA = 256 << 20

#: Prints seconds and peak memory above the imports of one conversion in a fresh process.
_MEASURE = """
import resource, sys, time
from onnxfold.export import export_model
from onnxfold.export.tflite import ops
from onnxfold.export.tflite.schema import schema
import flatbuffers
schema()
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
export_model(sys.argv[1], sys.argv[2], verify=sys.argv[3] == "verify")
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)
"""


@dataclass
class Row:
    """One network, dense or folded."""

    name: str
    form: str
    operators: dict[str, int] = field(default_factory=dict)
    refused: str = ""
    spread: float = 0.0
    results: dict[str, dict[str, Any]] = field(default_factory=dict)


def main() -> None:
    """Export, run, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tflite-runtime", type=Path, help="Python of an environment with tflite-runtime 2.14")
    parser.add_argument("--tflite-micro", type=Path, help="Python of an environment with tflite-micro")
    parser.add_argument("--onnx2tf", type=Path, help="the onnx2tf program")
    parser.add_argument("--only", nargs="*", help="names of networks")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/export.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    pythons = {
        "ai_edge_litert": Path(sys.executable),
        "tflite_runtime": args.tflite_runtime,
        "tflite_micro": args.tflite_micro,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = list(parity(folder, {k: p for k, p in pythons.items() if p is not None}, args.only))
        beside = comparison(folder, args.onnx2tf) if args.onnx2tf else []
    args.out.write_text(render(rows, beside), encoding="utf-8")
    print(args.out.read_text())


def networks(only: list[str] | None) -> dict[str, Callable[[Path], Path]]:
    """Return, by name, a function that writes the network's .onnx file into a folder."""
    named: dict[str, Callable[[Path], Path]] = {
        "LeNet5 (trained)": lambda _: DATA / "lenet5.onnx",
        "LeNet5-2x (trained)": lambda _: DATA / "lenet5_2x.onnx",
        "ResNet18, width 64": partial(_torch, torch_zoo.resnet18),
        "VGG11-BN, width 64": partial(_torch, torch_zoo.vgg11_bn),
        "MobileNetV2, width 1": partial(_torch, torch_zoo.mobilenet_v2),
    }
    named |= {f"zoo: {name}": partial(_zoo, name) for name in ZOO}
    return {n: f for n, f in named.items() if not only or n.removeprefix("zoo: ") in only}


def _torch(build: Callable[[], torch_zoo.Net], folder: Path) -> Path:
    net = torch_zoo.randomise(build(), 0)
    return torch_zoo.export(net, torch_zoo.example_input(net), folder / f"{build.__name__}.onnx", "legacy-bn")


def _zoo(name: str, folder: Path) -> Path:
    module, inputs = ZOO[name]()
    return export_zoo(module, inputs, folder / f"zoo_{name}.onnx", "legacy-fused")


def parity(folder: Path, pythons: dict[str, Path], only: list[str] | None) -> Iterator[Row]:
    """Yield a row per network and form with the differences in every runtime."""
    for name, write in networks(only).items():
        rows, jobs = [], []
        dense = write(folder)
        for form in ("dense", "folded"):
            row = Row(name, form)
            rows.append(row)
            try:
                path = dense if form == "dense" else _fold(dense, folder)
                jobs.append((row, _job(row, path, folder)))
            except OnnxFoldError as error:
                row.refused = str(error)
        for runtime, python in pythons.items():
            for (row, _), result in zip(jobs, run_jobs(python, runtime, [j for _, j in jobs], folder), strict=True):
                row.results[runtime] = result
        for row in rows:
            print(
                f"{row.name:28} {row.form:7} {row.refused[:90]} " + " ".join(_cell(row, r) for r in RUNTIMES),
                flush=True,
            )
        yield from rows


def _fold(path: Path, folder: Path) -> Path:
    result = onnxfold.fold(path, SPARSITY, method="fold-ar")
    return result.save(folder / f"{path.stem}_folded.onnx")


def _job(row: Row, path: Path, folder: Path) -> dict[str, Any]:
    """Convert, and store inputs with onnxruntime's outputs for the runner."""
    view = open_model(path)
    converted = _converted(view)
    row.operators = converted.operators
    file = folder / f"{path.stem}.{row.form}.tflite"
    file.write_bytes(converted.to_bytes(row.name))
    feeds, outputs = _samples(view)
    row.spread = min(float(np.ptp(v, axis=0).max() / max(float(np.abs(v).max()), 1e-30)) for v in outputs.values())
    arrays = {f"in/{p.name}": to_layout(feeds[p.name], p.layout) for p in converted.inputs}
    arrays |= {f"out/{p.name}": to_layout(outputs[p.name], p.layout) for p in converted.outputs}
    np.savez(file.with_suffix(".npz"), **arrays)
    names = {"inputs": [p.name for p in converted.inputs], "outputs": [p.name for p in converted.outputs]}
    batched = all(p.shape[:1] == (None,) for p in converted.inputs)
    return {"file": str(file), "data": str(file.with_suffix(".npz")), "arena": _ARENA, "batched": batched, **names}


def _samples(view: GraphView) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs and onnxruntime's outputs; all samples in one where the batch is free."""
    batches = reference_inputs(view)
    outputs = run_reference(view, batches)
    if not all((view.shape(name) or ())[:1] == (None,) for name in view.input_names):
        return batches[0], outputs[0]
    first, second = ({n: np.concatenate([p[n] for p in parts]) for n in parts[0]} for parts in (batches, outputs))
    return first, second


def _converted(view: GraphView) -> Converted:
    prepared = view.copy()
    PREPARE(prepared)
    return convert(prepared)


def run_jobs(python: Path, runtime: str, jobs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Run jobs in an interpreter; a crash is a result."""
    todo, done = folder / "jobs.json", folder / "results.json"
    todo.write_text(json.dumps(jobs))
    done.write_text("[]")
    ended = subprocess.run([python, RUNNER, runtime, todo, done], capture_output=True, text=True, check=False)
    results = json.loads(done.read_text())
    return results + [{"error": f"the runtime ended with code {ended.returncode}"}] * (len(jobs) - len(results))


def comparison(folder: Path, onnx2tf: Path) -> list[dict[str, Any]]:
    """Return time, memory, size, operators and latency of both tools for the published ResNet18 and MobileNetV2."""
    rows = []
    for name, build in (("ResNet18", torch_zoo.resnet18), ("MobileNetV2", torch_zoo.mobilenet_v2)):
        net = torch_zoo.randomise(build(num_classes=1000, stem="imagenet"), 0)
        for form in ("legacy-fused", "legacy-bn"):
            path = torch_zoo.export(net, torch_zoo.example_input(net), folder / f"{name}.{form}.onnx", form)  # type: ignore[arg-type]
            weights = sum(p.numel() for p in net.parameters())
            files = {"onnxfold": folder / "ours.tflite", "onnx2tf": folder / "o2t" / "copy_float32.tflite"}
            for how in ("no check", "verify"):
                done = _process([sys.executable, "-c", _MEASURE, path, files["onnxfold"], how])
                inner, memory = map(float, done["stdout"].split())
                ours = {"model": f"{name}, {form}", "tool": f"onnxfold, {how}", "file": files["onnxfold"], **done}
                rows.append(ours | {"inner_s": inner, "above_kb": memory, "model_bytes": path.stat().st_size})
            copy = folder / "copy.onnx"
            copy.write_bytes(path.read_bytes())  # onnx2tf overwrites its input
            done = _process(
                [onnx2tf, "-i", copy, "-o", folder / "o2t", "-tb", "flatbuffer_direct", "-n", "-coion", "-osd"]
            )
            rows.append(
                {"model": f"{name}, {form}", "tool": "onnx2tf flatbuffer_direct", "file": files["onnx2tf"], **done}
            )
            _latencies(rows[-3:], path, folder)
            for row in rows[-3:]:
                row["weights"] = weights
                row["load"] = os.getloadavg()[0]
                row["size"] = row["file"].stat().st_size
                row["operators"] = _operators(row["file"])
    return rows


def _process(command: list[Any]) -> dict[str, Any]:
    """Run a program; return wall time and peak memory of the whole process."""
    code = (
        "import json, resource, subprocess, sys, time; start = time.perf_counter(); "
        "d = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
        "print(json.dumps({'wall_s': time.perf_counter() - start, 'stdout': d.stdout if d.returncode == 0 else '', "
        "'returncode': d.returncode, 'peak_kb': resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}))"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, command)], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    if found["returncode"]:
        raise RuntimeError(f"{command[0]} ended with code {found['returncode']}")
    return found


def _latencies(rows: list[dict[str, Any]], path: Path, folder: Path) -> None:
    """Measure both files in the same interpreter, three times in turn; the median goes into the rows."""
    view = open_model(path)
    feeds, expected = _samples(view)
    converted = _converted(view)
    data = folder / "latency.npz"
    arrays = {f"in/{p.name}": to_layout(feeds[p.name], p.layout) for p in converted.inputs}
    np.savez(data, **arrays, **{f"out/{p.name}": to_layout(expected[p.name], p.layout) for p in converted.outputs})
    files = list(dict.fromkeys(str(r["file"]) for r in rows))
    jobs = [{"file": f, "data": str(data), "time": True} for f in files * 3]
    results = run_jobs(Path(sys.executable), "ai_edge_litert", jobs, folder)
    for row in rows:
        mine = [r for j, r in zip(jobs, results, strict=True) if j["file"] == str(row["file"])]
        row["ms"] = float(np.median([r["ms"] for r in mine]))
        row["error"] = max(r["max_rel_error"] for r in mine)


def _operators(file: Path) -> dict[str, int]:
    from ai_edge_litert import schema_py_generated as schema

    names = {v: k for k, v in vars(schema.BuiltinOperator).items() if k[0].isupper()}
    model = schema.ModelT.InitFromPackedBuf(file.read_bytes(), 0)
    found: dict[str, int] = {}
    for op in model.subgraphs[0].operators:
        code = model.operatorCodes[op.opcodeIndex]
        name = names[max(code.builtinCode, code.deprecatedBuiltinCode)]
        found[name] = found.get(name, 0) + 1
    return found


def _cell(row: Row, runtime: str) -> str:
    if row.refused:
        return "-"
    result = row.results.get(runtime)
    if result is None:
        return "not run"
    if "error" in result:
        return (
            str(result["error"])
            .split(" Failed to get")[0]
            .removeprefix("TFLM failed to allocate tensors ")
            .replace("|", "/")
        )
    error = result["max_rel_error"]
    return f"{error:.1e}" if error <= TOLERANCE else f"**{error:.1e}**"


def render(rows: list[Row], beside: list[dict[str, Any]]) -> str:
    """Return the page."""
    lines = [
        "# Exports to TFLite\n",
        "Reproduce with `python -m benchmarks.export` (its docstring says how to make the environments).\n",
        f"{platform.machine()}, {os.cpu_count()} cores, one thread; Python {platform.python_version()}, "
        f"ai-edge-litert {version('ai-edge-litert')}, tflite-runtime 2.14.0, onnxruntime "
        f"{version('onnxruntime')} with graph "
        "optimisations off.\n",
        "## Outputs\n",
        f"max |difference| / max |reference| over 16 synthetic inputs, tolerance {TOLERANCE:g}; **bold** is beyond it. "
        "*Spread* is how far the reference outputs lie apart over the inputs, relative to the largest: outputs are not "
        "constant. Networks are trained or have calibrated BatchNormalization statistics; *folded* "
        "has 50 % of the weights "
        "removed by fold-ar. Every network of the zoo is listed.\n",
    ]
    for runtime in RUNTIMES:
        ran = [r for r in rows if not r.refused and runtime in r.results]
        good = sum("error" not in r.results[runtime] and r.results[runtime]["max_rel_error"] <= TOLERANCE for r in ran)
        lines.append(f"- {runtime}: {good} of {len(ran)} files within the tolerance")
    lines.append(f"- refused by the writer or the fold: {sum(bool(r.refused) for r in rows)} of {len(rows)}\n")
    lines += ["| network | form | operators | TRANSPOSE | spread | " + " | ".join(RUNTIMES) + " |", "|---" * 8 + "|"]
    for row in rows:
        if row.refused:
            lines.append(f"| {row.name} | {row.form} | refused: {row.refused.replace('|', '/')} | | | | | |")
            continue
        cells = [str(sum(row.operators.values())), str(row.operators.get("TRANSPOSE", 0)), f"{row.spread:.2f}"]
        lines.append(f"| {row.name} | {row.form} | " + " | ".join([*cells, *(_cell(row, r) for r in RUNTIMES)]) + " |")
    if beside:
        lines += ["", *_beside(beside)]
    return "\n".join(lines) + "\n"


def _beside(rows: list[dict[str, Any]]) -> list[str]:
    loads = [r["load"] for r in rows]
    lines = [
        "## Beside onnx2tf\n",
        "Published layouts, 224 x 224. *Process* is the wall time of the whole program, start and "
        "imports included, for both "
        "tools; *conversion* is the call alone, with *memory* its peak above the imports, as a "
        "multiple of the .onnx file. "
        "Latency: ai-edge-litert, one thread, one image, median of three runs in turn. "
        f"The machine is shared: load average {min(loads):.1f} to {max(loads):.1f} meanwhile.\n",
        "| model | tool | process | peak of the process | conversion | memory | size | size - 4 "
        "bytes x weights | operators "
        "| TRANSPOSE | latency | max error |",
        "|---" * 12 + "|",
    ]
    for r in rows:
        inner = f"{r['inner_s']:.2f} s | {r['above_kb'] * 1024 / r['model_bytes']:.2f} x" if "inner_s" in r else "- | -"
        over = r["size"] - 4 * r["weights"]
        lines.append(
            f"| {r['model']} | {r['tool']} | {r['wall_s']:.2f} s | {r['peak_kb'] / 1024:.0f} MB | "
            f"{inner} | {r['size']:,} "
            f"| {over:+,} ({over / (4 * r['weights']):+.2%}) | {sum(r['operators'].values())} "
            f"| {r['operators'].get('TRANSPOSE', 0)} | {r['ms']:.2f} ms | {r['error']:.1e} |"
        )
    return lines


if __name__ == "__main__":
    main()
