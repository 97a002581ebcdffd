"""Run .tflite files in one interpreter, possibly in a separate environment, and compare outputs.

Usage: python export_runner.py ai_edge_litert|tflite_runtime|tflite_micro JOBS.json OUT.json

Knows nothing of onnxfold, so that it runs where only numpy and an interpreter are installed. A job is a file and an
.npz with arrays ``in/NAME`` and ``out/NAME`` in the order of the file's axes. For each job: largest absolute
difference, the same relative to the largest reference output, milliseconds per run of one sample; or the error.
"""

import contextlib
import json
import os
import sys
import tempfile
import time

import numpy as np

_TIMED_SECONDS = 1.0


def main():
    """Run all jobs."""
    package, jobs_path, out_path = sys.argv[1:4]
    with open(jobs_path) as file:
        jobs = json.load(file)
    results = []
    for job in jobs:
        data = np.load(job["data"])
        inputs = {k[3:]: data[k] for k in data.files if k.startswith("in/")}
        expected = {k[4:]: data[k] for k in data.files if k.startswith("out/")}
        run = _micro if package == "tflite_micro" else _interpreter
        with _stderr() as told:
            try:
                result = run(package, job, inputs, expected)
                result["samples"] = len(next(iter(inputs.values())))
            except Exception as error:
                told.seek(0)
                result = {"error": " ".join((str(error) + " " + told.read()).split())[:600]}
        results.append(result)
        with open(out_path, "w") as file:
            json.dump(results, file)


@contextlib.contextmanager
def _stderr():
    """Catch what C++ code writes to stderr: TFLM names the missing operator only there."""
    with tempfile.TemporaryFile("w+", errors="replace") as caught:
        kept = os.dup(2)
        os.dup2(caught.fileno(), 2)
        try:
            yield caught
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _interpreter(package, job, inputs, expected):
    module = __import__(package + ".interpreter", fromlist=["Interpreter"])
    interpreter = module.Interpreter(model_path=job["file"], num_threads=1)
    got = interpreter.get_signature_runner()(**inputs)
    found = _difference(got, expected)
    if job.get("time"):
        found["ms"] = _milliseconds(module, job["file"], {n: v[:1] for n, v in inputs.items()})
    return found


def _milliseconds(module, path, inputs):
    interpreter = module.Interpreter(model_path=path, num_threads=1)
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        shape = tuple(detail["shape"])
        given = next(v for v in inputs.values() if v.size == np.prod(shape) and v.dtype == detail["dtype"])
        interpreter.set_tensor(detail["index"], given.reshape(shape))
    interpreter.invoke()
    times, end = [], time.perf_counter() + _TIMED_SECONDS
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        interpreter.invoke()
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1e3)


def _micro(package, job, inputs, expected):
    from tflite_micro.python.tflite_micro import runtime

    interpreter = runtime.Interpreter.from_file(job["file"], arena_size=job["arena"])
    got = {name: [] for name in expected}
    samples = len(next(iter(inputs.values()))) if job["batched"] else 1
    for sample in range(samples):
        for index, name in enumerate(job["inputs"]):
            values = inputs[name][sample : sample + 1] if job["batched"] else inputs[name]
            interpreter.set_input(np.ascontiguousarray(values), index)
        interpreter.invoke()
        for index, name in enumerate(job["outputs"]):
            got[name].append(interpreter.get_output(index))
    return _difference({n: np.concatenate(v) if job["batched"] else v[0] for n, v in got.items()}, expected)


def _difference(got, expected):
    absolute = relative = 0.0
    for name, reference in expected.items():
        values = np.asarray(got[name]).reshape(reference.shape)
        # max() drops NaNs, so what is not finite must not reach it.
        if not (np.isfinite(values).all() and np.isfinite(reference).all()):
            raise ValueError(f"output '{name}' is not finite")
        error = float(np.abs(values.astype(np.float64) - reference.astype(np.float64)).max())
        absolute = max(absolute, error)
        relative = max(relative, error / max(float(np.abs(reference).max()), 1e-30))
    return {"max_abs_error": absolute, "max_rel_error": relative}


if __name__ == "__main__":
    main()
