"""Comparison with onnx2tf: time, memory, size, operators and latency."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.export.runtimes import arrays_of, convert_prepared, reference_samples, run_jobs
from onnxfold.export.api import open_model
from testing.zoo import export as zoo_export
from testing.zoo import scalable

#: Prints seconds and peak memory above the imports of one conversion in a fresh process.
_MEASURE = """
import resource, sys, time
from onnxfold.export import export_model
from onnxfold.export.tflite import ops
from onnxfold.export.tflite.graph import schema
import flatbuffers
schema()
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
export_model(sys.argv[1], sys.argv[2], verify=sys.argv[3] == "verify")
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)
"""


def comparison(folder: Path, onnx2tf: Path) -> list[dict[str, Any]]:
    """Return time, memory, size, operators and latency of both tools for the published ResNet18 and MobileNetV2."""
    rows = []
    for name, build in (("ResNet18", scalable.resnet18), ("MobileNetV2", scalable.mobilenet_v2)):
        net = scalable.seeded(build(num_classes=1000, stem="imagenet"), 0)
        for form in ("legacy-fused", "legacy-bn"):
            path = zoo_export.export(net, scalable.example_input(net), folder / f"{name}.{form}.onnx", form)  # type: ignore[arg-type]
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
    feeds, expected = reference_samples(view)
    converted = convert_prepared(view)
    data = folder / "latency.npz"
    np.savez(data, **arrays_of(converted.ports, feeds, expected))
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
