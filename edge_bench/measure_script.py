# ruff: noqa: UP006, UP021, UP022, UP035, UP045, B905
# Python 3.6 runs this, too: that is what a Jetson Nano has.
"""Measure one model in every interpreter of this machine; copied to the measured machine.

Usage: python3 measure_script.py JOB.json

Needs Python 3.6 or newer and one of the packages tflite_runtime, ai_edge_litert and onnxruntime (which bring numpy),
and knows nothing of onnxfold. Every interpreter is run in a process of its own. The last line of the output is
:data:`MARK` and a JSON object. Times are seconds per inference; memory is the growth of the process's resident peak
from before the model is loaded to after the last inference.
"""

import base64
import glob
import importlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import timeit
from typing import Any, Callable, Dict, List, Optional, Tuple

MARK = "ONNXFOLD-MEASUREMENT"
#: Interpreters in the order of preference, and the file that each of them reads.
INTERPRETERS = (("ai_edge_litert", "tflite"), ("tflite_runtime", "tflite"), ("onnxruntime", "onnx"))

Arrays = List[Any]


def main(arguments: List[str]) -> None:
    """Measure in all interpreters, or in the one that is named behind the job."""
    with open(arguments[0]) as file:
        job = json.load(file)
    os.chdir(os.path.dirname(os.path.abspath(arguments[0])))
    if len(arguments) > 1:
        answer = measure(job, arguments[1])
    else:
        answer = {"system": system(), "runs": measure_all(job, os.path.abspath(arguments[0]))}
    sys.stdout.write(f"\n{MARK} {json.dumps(answer)}\n")


def measure_all(job: Dict[str, Any], path: str) -> List[Dict[str, Any]]:
    """Run this script once per interpreter that is installed and has a file to read."""
    runs = []
    for name, kind in INTERPRETERS:
        if kind not in job["files"] or importlib.util.find_spec(name) is None:
            continue
        command = [sys.executable, os.path.abspath(__file__), path, name]
        try:
            child = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                timeout=job["timeout"], check=False,
            )  # fmt: skip
            lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
            run = last_measurement(child.stdout) or {"error": lines[-1][:300]}
        except subprocess.TimeoutExpired:
            run = {"error": f"no result within {job['timeout']:g} s"}
        run["interpreter"] = name
        runs.append(run)
    return runs


def last_measurement(text: str) -> Optional[Dict[str, Any]]:
    """Return the text after the last mark; None without a mark."""
    for line in reversed(text.splitlines()):
        if line.startswith(MARK + " "):
            answer: Dict[str, Any] = json.loads(line[len(MARK) + 1 :])
            return answer
    return None


def measure(job: Dict[str, Any], name: str) -> Dict[str, Any]:
    """Run the model in one interpreter: first every input once, then one input over and over."""
    import numpy

    kind = dict(INTERPRETERS)[name]
    with numpy.load(job["inputs"][kind]) as data:
        inputs = [[data[f"{i}/{j}"] for j in range(job["ports"])] for i in range(job["samples"])]
    load = _load_onnxruntime if name == "onnxruntime" else _load_tflite
    module = importlib.import_module(name if name == "onnxruntime" else name + ".interpreter")
    before = peak_memory(reset=True)
    for path in job["files"][kind]:  # the next one where an interpreter is too old for a file
        try:
            prepare, fetch = load(module, path, job["threads"])
            break
        except Exception:  # every interpreter has exceptions of its own
            if path == job["files"][kind][-1]:
                raise
    outputs = [fetch(prepare(arrays)()) for arrays in inputs]
    timer = timeit.Timer(prepare(inputs[0]))
    timer.timeit(job["warm_up"])
    times = timer.repeat(job["repeats"], 1)
    after = peak_memory()
    return {
        "version": version_of(name),
        "file": path,
        "seconds": times,
        "memory": None if before is None or after is None else max(after - before, 0),
        "clock_hz": clock(),
        "outputs": [[_pack(numpy.asarray(a)) for a in arrays] for arrays in outputs],
    }


def _pack(array: Any) -> Dict[str, Any]:
    data = base64.b64encode(array.tobytes()).decode("ascii")
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": data}


#: Takes inputs and returns what is timed; and what reads the outputs off its result.
Loaded = Tuple[Callable[[Arrays], Callable[[], Any]], Callable[[Any], Arrays]]


def _load_tflite(module: Any, path: str, threads: int) -> Loaded:
    """TFLite: inputs and outputs are those of the file, in its order; only `invoke` is timed."""
    interpreter = module.Interpreter(model_path=path, num_threads=threads)
    interpreter.allocate_tensors()
    places = [d["index"] for d in interpreter.get_input_details()]
    results = [d["index"] for d in interpreter.get_output_details()]

    def prepare(arrays: Arrays) -> Callable[[], Any]:
        for place, array in zip(places, arrays):
            interpreter.set_tensor(place, array)
        invoke: Callable[[], Any] = interpreter.invoke
        return invoke

    return prepare, lambda _: [interpreter.get_tensor(r).copy() for r in results]


def _load_onnxruntime(module: Any, path: str, threads: int) -> Loaded:
    """Load into onnxruntime, on the CPU and as it is deployed: with graph optimisations, its threads spinning."""
    options = module.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = module.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]

    def prepare(arrays: Arrays) -> Callable[[], Any]:
        feeds = dict(zip(names, arrays))
        return lambda: session.run(None, feeds)

    return prepare, lambda outputs: outputs


def version_of(name: str) -> str:
    """Return a package's version if it states one."""
    version = getattr(importlib.import_module(name), "__version__", "")
    if version:
        return str(version)
    try:
        metadata = importlib.import_module("importlib.metadata")
        return str(metadata.version(name.replace("_", "-")))
    except Exception:  # Python 3.7 and older have no importlib.metadata, and a package may not be a distribution
        return "of unknown version"


def peak_memory(reset: bool = False) -> Optional[int]:
    """Return the largest resident size so far in bytes, None where the system does not tell; start anew if asked."""
    if reset:
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        except OSError:  # not every kernel can: then earlier peaks hide what is below them
            pass
    match = re.search(r"^VmHWM:\s*(\d+) kB", _read("/proc/self/status"), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def clock() -> Optional[int]:
    """Return the present clock of the first core in Hz, None where the system does not tell."""
    text = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    if text.isdigit():
        return int(text) * 1000
    match = re.search(r"^cpu MHz\s*:\s*([\d.]+)", _read("/proc/cpuinfo"), re.MULTILINE)
    return int(float(match.group(1)) * 1e6) if match else None


def system() -> Dict[str, Any]:
    """Return the description of this machine and of its settings."""
    folder = "/sys/devices/system/cpu/cpu0/cpufreq/"
    model = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    facts = {
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "board": _read("/proc/device-tree/model"),
        "processor": model.group(1).strip() if model else "",
        "cores_online": _read("/sys/devices/system/cpu/online"),
        "governor": _read(folder + "scaling_governor"),
        "clock_khz_lowest_highest": " ".join(_read(folder + f"scaling_{e}_freq") for e in ("min", "max")).strip(),
        "jetson_release": _read("/etc/nv_tegra_release"),
        "power_mode": _power_mode(),
    }
    zones = [_read(path) for path in sorted(glob.glob("/sys/class/thermal/thermal_zone*/temp"))]
    facts["temperature_mc"] = [int(z) for z in zones if re.match(r"-?\d+$", z)]
    return {key: value for key, value in facts.items() if value}


def _power_mode() -> str:
    """Return the power mode of a Jetson."""
    for program in ("nvpmodel", "/usr/sbin/nvpmodel"):
        try:
            child = subprocess.run(
                [program, "-q"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        match = re.search(r"NV Power Mode:\s*(\S+)", child.stdout.decode("utf-8", "replace"))
        if match:
            return match.group(1)
    return ""


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read().strip("\0 \t\r\n")
    except OSError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1:])
