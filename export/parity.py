"""Comparison of an exported file with its ONNX model, on the natural scales of its outputs.

Outputs of Sigmoid and Softmax lie between 0 and 1, so differences of them are measured against 1, wherever the inputs
happen to push them: a detector that finds nothing gives 4e-5 everywhere, and float32 near 1 rounds to 1e-7. Others are
measured against their own largest entry.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from onnxfold.budget.costs.running import count_macs
from onnxfold.errors import ExportError
from onnxfold.export.tflite.convert import Ports
from onnxfold.export.tflite.layout import Layout
from onnxfold.graph.files.save import to_model
from onnxfold.graph.run.runtime import session_options
from onnxfold.graph.run.session import batch_of, in_batches, one_line, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.synthetic import synthetic_inputs
from onnxfold.statistics.activations import Batches

#: Packages in the order of preference; both have the same class.
PACKAGES = ("ai_edge_litert", "tflite_runtime")


class TFLiteInterpreter:
    """A .tflite file loaded in an interpreter; arrays by the names of the signature."""

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        self.package = next((name for name in PACKAGES if find_spec(name) is not None), None)
        if self.package is None:
            raise ExportError(
                "no TFLite interpreter is installed to check the file with: pip install ai-edge-litert flatbuffers, or "
                "give --no-verify"
            )
        module = import_module(f"{self.package}.interpreter")
        try:
            self._interpreter: Any = module.Interpreter(model_path=str(path), num_threads=threads)
            self._runner = self._interpreter.get_signature_runner()
            self._inputs = dict(self._runner.get_input_details())
            self._outputs = dict(self._runner.get_output_details())
        except (RuntimeError, ValueError) as error:
            raise ExportError(f"{self.package} does not load the file: {one_line(error)}") from None

    def shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Return the shapes of 'inputs' and 'outputs' by name, with the size that a free batch has in the file."""
        sides = (("inputs", self._inputs), ("outputs", self._outputs))
        return {side: {n: tuple(int(d) for d in v["shape"]) for n, v in details.items()} for side, details in sides}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return all outputs by name; the inputs' first dimension may have any size where it is free.

        Floats go into quantised inputs, and come out of quantised outputs, by their scale and zero point.
        """
        try:
            outputs = self._runner(**{n: _quantise(v, self._inputs[n]) for n, v in feeds.items()})
        except (RuntimeError, ValueError) as error:
            raise ExportError(f"{self.package} fails while running the file: {one_line(error)}") from None
        pairs = {n: self._outputs[n]["quantization"] for n in outputs}
        return {
            n: (v.astype(np.float32) - pairs[n][1]) * np.float32(pairs[n][0]) if pairs[n][0] else v
            for n, v in outputs.items()
        }

    def quantisation(self) -> dict[str, tuple[float, int]]:
        """Return scale and zero point of the inputs and outputs that are quantised."""
        details = {**self._inputs, **self._outputs}
        pairs = {n: d["quantization"] for n, d in details.items()}
        return {n: (float(scale), int(zero)) for n, (scale, zero) in pairs.items() if scale}


def _quantise(values: Array, detail: Mapping[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    if not scale or values.dtype.kind != "f":
        return values
    limits = np.iinfo(detail["dtype"])
    stored: Array = np.clip(np.round(values / scale) + zero, limits.min, limits.max).astype(detail["dtype"])
    return stored


Outputs = list[dict[str, Array]]

#: Operators whose results lie between 0 and 1.
_PROBABILITIES = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
#: Operators that only move entries of their first input; of all inputs in `_JOINS`.
_MOVES = frozenset(
    {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Split", "Dropout"}
)
_JOINS = frozenset({"Concat"})
#: An output between 0 and 1 is excited where it reaches this.
_EXCITED = 0.1
#: Factors on the inputs that are tried for that.
_FACTORS = (3.0, 10.0, 30.0, 100.0)
#: Scale of an output between 0 and 1 that no input excites: ten roundings of float32 near 1 are within the tolerance,
#: and entries that are missing altogether are not.
_DULL = 0.01


def probabilities(view: GraphView) -> frozenset[str]:
    """Return the outputs of a model whose entries lie between 0 and 1 by its operators."""
    return frozenset(name for name in view.output_names if _is_probability(view, name))


def scale_of(own: Array, reached: float | None) -> tuple[float, str]:
    """Return the value that differences of an output are measured against, in words, too.

    `reached` is the largest value of an output whose entries lie between 0 and 1.
    """
    if reached is not None:
        return (1.0, "the range 0 to 1") if reached >= _EXCITED else (_DULL, f"{_DULL:g}")
    largest = float(np.abs(own[np.isfinite(own)]).max(initial=0.0))
    return largest or 1.0, "the largest entry"


def exciting_inputs(
    bounded: frozenset[str], batches: Batches, outputs: Outputs, run: Callable[[Batches], Outputs]
) -> tuple[Batches, Outputs]:
    """Return further inputs, and the outputs on them, where outputs between 0 and 1 are close to 0 everywhere."""
    more: Batches = []
    more_outputs: Outputs = []
    dull = {name for name in bounded if _largest_value(name, outputs) < _EXCITED}
    for factor in _FACTORS if dull else ():
        scaled = {n: (v * factor).astype(v.dtype) if v.dtype.kind == "f" else v for n, v in batches[0].items()}
        got = run([scaled])
        excited = {name for name in dull if _largest_value(name, got) >= _EXCITED}
        if excited and all(np.isfinite(v).all() for v in got[0].values() if v.dtype.kind == "f"):
            more.append(scaled)
            more_outputs += got
            dull -= excited
        if not dull:
            break
    return more, more_outputs


def _largest_value(name: str, outputs: Outputs) -> float:
    return max((float(arrays[name].max(initial=0.0)) for arrays in outputs), default=0.0)


def _is_probability(view: GraphView, name: str) -> bool:
    node = view.producer(name)
    while node is not None and node.op_type in _MOVES:
        name = node.input[0]
        node = view.producer(name)
    if node is None:
        return False
    if node.op_type in _JOINS:
        return all(_is_probability(view, part) for part in node.input)
    return node.op_type in _PROBABILITIES


#: Samples that both sides see.
SAMPLES = 16
#: Multiply-accumulates that a check may take in each runtime, about a second without graph optimisations; two samples
#: are always run.
_CHECK_MACS = 4e9
_FEWEST_SAMPLES = 2
#: Samples at a time where the batch is free; not the 1 that the file was written for, and little memory.
_BATCH = 4
#: One batch of so many is set apart.
_APART = 4
#: Energy that a signal has at least, for logarithms.
_NO_SIGNAL = 1e-30
#: Ratio of noise where values are not finite any more.
DESTROYED = 1e9
#: Part of whole numbers, such as positions in the order of scores, that may differ: rounding decides near ties.
_NEAR_TIES = 0.05
#: Largest difference relative to an output's natural scale that float32 rounding explains.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Parity:
    """Distance between the outputs of two files."""

    interpreter: str  # package that ran the export
    samples: int
    max_abs_error: float  # largest absolute difference over all outputs
    #: Largest over the outputs of: largest absolute difference / natural scale of the output
    #: (:mod:`onnxfold.export.parity`).
    max_rel_error: float
    output: str = ""  # the output with that largest difference
    scale: str = ""  # what it was measured against, in words
    #: Smallest over the outputs of: energy of all values / energy of all differences, in decibels; None where nothing
    #: differs.
    snr_db: float | None = None
    noisiest: str = ""  # the output with that ratio
    inputs: str = "synthetic"


def check_samples(view: GraphView, most: int = SAMPLES) -> int:
    """Return how many samples a check runs, or a calibration with so many at most: fewer of networks that take long."""
    budget = _CHECK_MACS * most / SAMPLES
    return int(min(most, max(budget / (count_macs(view) or 1), _FEWEST_SAMPLES * most / SAMPLES)))


def reference_inputs(view: GraphView, *, samples: int = SAMPLES, seed: int = 0) -> Batches:
    """Return synthetic inputs in batches that the model accepts, `samples` of them where its batch allows it."""
    if any((view.shape(name) or ())[:1] == (0,) for name in view.input_names):
        raise ExportError("the model has a fixed batch of 0 samples: the export cannot be checked")
    batches = synthetic_inputs(view, samples=samples, seed=seed)
    if not all((view.shape(name) or ())[:1] == (None,) for name in view.input_names):
        return batches[: max(1, -(-samples // sample_count(batches[0])))]
    # There are fewer than wanted where their activations take much memory.
    return list(in_batches({n: np.concatenate([b[n] for b in batches])[:samples] for n in batches[0]}, _BATCH))


def user_batches(view: GraphView, arrays: Mapping[str, Array], most: int) -> Batches:
    """Return samples of a user in batches that the model accepts, at most so many, at equal distances."""
    size = batch_of(view) or _BATCH
    batches = list(in_batches(arrays, size))
    wanted = min(max(most // size, 1), len(batches))
    return [batches[i * len(batches) // wanted] for i in range(wanted)]


def set_apart(view: GraphView, arrays: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return samples of a user without every fourth batch, and these; both are all samples where there are too few."""
    size = batch_of(view) or 1
    count = sample_count(arrays) // size * size
    apart = np.arange(count) // size % _APART == _APART - 1
    if not apart.any():
        return dict(arrays), dict(arrays)
    rest, held = ({n: v[:count][part] if v.ndim else v for n, v in arrays.items()} for part in (~apart, apart))
    return rest, held


def run_reference(model: Path | GraphView, batches: Batches) -> Outputs:
    """Return the outputs of onnxruntime with graph optimisations off."""
    options = session_options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    source = str(model) if isinstance(model, Path) else to_model(model).SerializeToString()
    try:
        session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        return [dict(zip(names, session.run(None, dict(feeds)), strict=True)) for feeds in batches]
    except Exception as error:  # onnxruntime's exception classes are not public
        reason = f"the parity check needs the ONNX model's outputs, and onnxruntime fails: {one_line(error)}"
        raise ExportError(reason) from None


def compare(
    path: Path, batches: Batches, expected: Outputs, ports: Ports, bounded: frozenset[str] = frozenset()
) -> Parity:
    """Run an exported file on the inputs of :func:`run_reference` and measure the differences."""
    interpreter = TFLiteInterpreter(path)
    absolute, relative, worst, scale = 0.0, -1.0, "", ""
    reached = {name: _largest_value(name, expected) for name in bounded}
    energies = {name: np.zeros(2) for name in ports.outputs}
    moved = {name: np.zeros(2) for name, values in expected[0].items() if values.dtype.kind in "iu"}  # of all numbers
    for name, a, b in _beside(interpreter, batches, expected, ports):
        error = difference(name, a, b)
        if a.size and not np.isfinite(a).any():
            continue
        energies[name] += _energies(a, b)
        if name in moved:
            moved[name] += np.array([np.count_nonzero(a != b), a.size])
            continue
        absolute = max(absolute, error)
        unit, words = scale_of(a, reached.get(name))
        if not error / unit <= relative:  # NaN included
            relative, worst, scale = error / unit, name, words
    for name, (differing, numbers) in moved.items():
        share = float(differing / max(numbers, 1))
        if share <= _NEAR_TIES:
            share, energies[name][1] = 0.0, 0.0
        if share > relative:
            relative, worst, scale = share, name, "its numbers"
    ratios = {
        name: 10 * math.log10(max(signal, _NO_SIGNAL) / noise) for name, (signal, noise) in energies.items() if noise
    }
    noisiest = min(ratios, key=lambda name: ratios[name], default="")
    samples = sum(len(first) if (first := next(iter(feeds.values()), np.zeros(()))).ndim else 1 for feeds in batches)
    return Parity(
        str(interpreter.package), samples, absolute, max(relative, 0.0), worst, scale,
        snr_db=ratios.get(noisiest), noisiest=noisiest,
    )  # fmt: skip


def noise_to_signal(path: Path, batches: Batches, expected: Outputs, ports: Ports) -> float:
    """Return the energy of differences by that of the values, of the output with most of it."""
    energies = {name: np.zeros(2) for name in ports.outputs}
    for name, a, b in _beside(TFLiteInterpreter(path), batches, expected, ports):
        energies[name] += _energies(a, b)
    ratios = [noise / max(signal, _NO_SIGNAL) for signal, noise in energies.values()]
    return float(np.nan_to_num(ratios, nan=DESTROYED, posinf=DESTROYED).max(initial=0.0))


def _beside(
    interpreter: TFLiteInterpreter, batches: Batches, expected: Outputs, ports: Ports
) -> Iterator[tuple[str, Array, Array]]:
    """Return every output by name as it should be, and as a file gives it, batch by batch."""
    for feeds, reference in zip(batches, expected, strict=True):
        got = interpreter.run(to_layouts(feeds, ports))
        for name, layout in ports.outputs.items():
            exported = from_layout(np.asarray(got[name]), layout)
            yield name, np.asarray(reference[name], np.float64), exported.astype(np.float64)


def _energies(a: Array, b: Array) -> Array:
    """Return the energy of values and of the differences from them, where they are finite."""
    finite = np.isfinite(a)
    return np.array([np.square(a[finite]).sum(), np.square((b - a)[finite]).sum()])


def difference(name: str, a: Array, b: Array) -> float:
    """Return the largest absolute difference; equal infinities and NaNs do not differ."""
    if a.shape != b.shape:
        raise ExportError(f"output '{name}' has the shape {a.shape} in ONNX and {b.shape} in the export")
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        raise ExportError(f"output '{name}' is not finite at the same places as in ONNX")
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0))


def to_layouts(feeds: Mapping[str, Array], ports: Ports) -> dict[str, Array]:
    """Bring the inputs of a model into the layouts and the order of a file."""
    return {n: np.asarray(feeds[n].transpose(layout.perm), order="C") for n, layout in ports.inputs.items()}


def from_layout(values: Array, layout: Layout) -> Array:
    """Bring an array of the file into ONNX's order."""
    return values.transpose(np.argsort(layout.perm))
