"""Bytes, accuracy and milliseconds of the files."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import onnxruntime as ort

from benchmarks.accuracy.networks import Images, Labels
from benchmarks.accuracy.store import Row
from benchmarks.equal_bytes.variants import Variant
from onnxfold.export.parity import TFLiteInterpreter
from onnxfold.latency.interleaved import Timing, clock_for, time_interleaved
from onnxfold.machine.threads import usable_cores

#: Rounds in which every file of a network has its turn.
ROUNDS = 61
_BATCH = 50

Run = Callable[[Images], Images]


def opened(variant: Variant, threads: int = 1) -> Run:
    """Return what gives the class scores of images, with the defaults of the runtime."""
    if variant.runtime == "tflite":
        interpreter = TFLiteInterpreter(variant.path, threads=threads)
        shapes = interpreter.shapes()
        (name,), (result,) = shapes["inputs"], shapes["outputs"]
        return lambda images: interpreter.run({name: images})[result]
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(str(variant.path), options, providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0].name
    return lambda images: np.asarray(session.run(None, {source: images})[0])


def fingerprint(variant: Variant, images: Images) -> str:
    """Return what changes with the content of a file and the number of images."""
    return f"{hashlib.sha256(variant.path.read_bytes()).hexdigest()[:16]} {len(images)}"


def size_and_accuracy(variant: Variant, images: Images, labels: Labels) -> Row:
    """Return bytes and accuracy of a file."""
    run = opened(variant, usable_cores())
    parts = [run(images[i : i + _BATCH]).argmax(axis=1) for i in range(0, len(images), _BATCH)]
    return {
        "bytes": variant.path.stat().st_size,
        "accuracy": float((np.concatenate(parts) == labels).mean()),
        "images": len(images),
        "of": fingerprint(variant, images),
    }


def times(variants: Sequence[Variant], image: Images) -> dict[str, Row]:
    """Return milliseconds for one image, and their ratio to the dense file of the same runtime, timed in turn.

    Parameters
    ----------
    variants : sequence of Variant
        Files of one network; the dense ones of both runtimes are among them.
    image : ndarray of shape (1, channels, height, width)
        One image.
    """
    found: dict[str, Row] = {}
    runs = {v: opened(v) for v in variants}
    for runtime in dict.fromkeys(v.runtime for v in variants):
        own = sorted((v for v in variants if v.runtime == runtime), key=lambda v: (v.sparsity, v.dtype != "float32"))
        timing = time_interleaved(
            [lambda run=runs[v]: run(image) for v in own],  # type: ignore[misc]
            rounds=ROUNDS, clock=clock_for(1),
        )  # fmt: skip
        found |= {v.key: _row(timing, i) for i, v in enumerate(own)}
    return found


def _row(timing: Timing, i: int) -> Row:
    return {
        "ms": 1e3 * timing.median(i),
        "ratio": timing.ratio(i),
        "spread": timing.ratio_spread(i),
        "rounds": timing.rounds,
    }
