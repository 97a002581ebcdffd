r"""Deep inversion: inputs optimised from the weights alone, until they resemble training data.

Inputs are optimised by gradient descent until the statistics that they have at every BatchNormalization are the running
ones, which training left there, and until their class scores are spread evenly over the classes:

    sum over l of mean over c of [ ((m - mu) / sigma)^2 + (s / sigma - 1)^2 ]
        + alpha cross-entropy + tau total variation + lambda mean square ,

with m, s the mean and deviation of a batch at channel c of normalisation l and mu, sigma the running ones. Where these
were fused into the convolutions l before them, the first term becomes the unevenness of the channels,

    sum over l of mean over c of [ log(1 + ((m - m~) / s~)^2) + log(1 + log(s / s~)^2) ] ,

with m~ and s~ the medians over the channels of m and s; docs/mathematics.md says why. The logarithm lets few channels
be exceptions. Without a convolution either, only the class scores are left to go by. The steps that are planned follow
from counted costs; a batch takes fewer where its statistics stop improving, and where the time is up.

References: DeepInversion, arXiv 1912.08795; used for folding in arXiv 2502.10216. That fused layers still tell beta and
gamma is used, for the bias of quantised layers, in Data-Free Quantization, arXiv 1906.04721.

torch is optional: this module can be imported, and can say what stands in the way, without it.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto

from onnxfold.channels.declarations import BatchNorm
from onnxfold.channels.layers import batch_norm, layer_of
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.nodes import node_key, reached_nodes
from onnxfold.graph.patterns import behind
from onnxfold.graph.tensors import Array, is_float
from onnxfold.graph.view import GraphView
from onnxfold.progress import Progress, silent
from onnxfold.torch_graph.availability import load_torch, require_torch, torch_is_available


@dataclass(frozen=True)
class StepCounts:
    """Steps per batch."""

    statistics: int = 40  # where the model has BatchNormalizations
    fused: int = 18  # where BatchNormalizations seem to be fused into layers
    alone: int = 15  # where it has none: class scores alone lead away from data when followed for long


@dataclass(frozen=True)
class InversionSettings:
    """Settings of an inversion."""

    steps: StepCounts = StepCounts()
    #: Steps of each batch, or of all, whatever the statistics and the clock say; empty to let them decide.
    exact_steps: tuple[int, ...] = ()
    #: Time for all batches: those that would exceed it settle earlier, and the result hangs on the machine's speed.
    seconds: float = math.inf
    learning_rate: float = 0.05  # of Adam, in units of the inputs, until it falls
    #: Share of the steps, at the end, over which the learning rate falls to zero: at a constant one, single steps
    #: overshoot and the last one may be such.
    settling: float = 0.25
    #: Let the rate fall at once when the error of the statistics has, in the median over `window` steps, fallen by less
    #: than this fraction since the `window` before; without statistics the loss decides.
    window: int = 15
    tolerance: float = 0.01
    batch: int = 128  # samples per batch, if memory allows; the statistics of fewer samples are noisier
    memory_bytes: int = 1 << 30  # memory for the activations of one batch
    #: Multiply matrices in bfloat16 where the processor does: twice as fast. Sums, statistics and inputs stay float32.
    bfloat16: bool = True


#: Unweighted parts of the loss that a model has: "statistics", the squared relative errors of means and deviations,
#: summed over normalisations; "evenness", that of the channels of layers with a fused BatchNormalization, summed; and
#: "class_scores", the cross-entropy of the intended classes, in nats.
LossTerms = dict[str, float]


@dataclass(frozen=True)
class Inversion:
    """Inputs, and how far the optimisation came."""

    inputs: list[dict[str, Array]]  # batches of the sizes and types that were given
    initial: LossTerms  # of the inputs that were given, and of these, averaged over batches
    final: LossTerms
    #: Steps of each of the batches that were optimised one after the other; as `exact_steps` they give the same inputs.
    steps_per_batch: tuple[int, ...]
    planned: int  # steps per batch that were planned
    cut: bool = False  # whether the clock made them fewer

    @property
    def steps(self) -> int:
        """Steps in all."""
        return sum(self.steps_per_batch)


@dataclass
class Schedule:
    """The steps of one batch."""

    settings: InversionSettings
    planned: int
    exact: int | None = None  # steps to take without regard to loss and time
    clock: Callable[[], float] = time.monotonic  # returns the time in seconds
    end: int = 0  # steps to take, by the present plan
    cut: bool = False  # whether the time limit made them fewer
    _losses: list[float] = field(default_factory=list)
    _times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.planned if self.exact is None else self.exact

    def begin(self, seconds: float) -> None:
        """Give this batch its time. One that is too short for two steps is exceeded."""
        self.seconds, self._start = seconds, self.clock()

    @property
    def done(self) -> int:
        """Steps taken."""
        return len(self._losses)

    @property
    def running(self) -> bool:
        """Whether there is another step to take."""
        return self.done < self.end

    @property
    def rate(self) -> float:
        """Part of the learning rate that the next step takes."""
        return min((self.end - self.done) / max(math.ceil(self.settings.settling * self.end), 1), 1.0)

    def note(self, loss: float) -> None:
        """Take note of a step, whose loss is what shall improve."""
        self._losses.append(loss)
        self._times.append(self.clock())
        if self.exact is not None:
            return
        end = self._end_if_settled_after(self.done)
        if end < self.end and (self._is_flat() or self._time_is_up()):
            self.end = end

    def _end_if_settled_after(self, done: int) -> int:
        """Return the fewest steps whose learning rate falls only after these; once it falls, the end is fixed."""
        return next((n for n in range(done, self.end) if n - math.ceil(self.settings.settling * n) >= done), self.end)

    def _is_flat(self) -> bool:
        window = self.settings.window
        if self.done < 2 * window:
            return False
        # Medians: single steps of Adam overshoot by far.
        before, now = np.median(self._losses[-2 * window : -window]), np.median(self._losses[-window:])
        return bool(before - now < self.settings.tolerance * abs(before))

    def _time_is_up(self) -> bool:
        """Whether another step, and those that then must follow, would take too long."""
        elapsed = self._times[-1] - self._start
        # The first step, which prepares much, says little about the others.
        per_step = float(np.median(np.diff(self._times))) if self.done > 1 else 0.0
        following = self._end_if_settled_after(self.done + 1) - self.done
        self.cut = elapsed + per_step * following > self.seconds
        return self.cut


def obstacle(view: GraphView) -> str:
    """Return why a model cannot be inverted, '' if it can; nothing is computed."""
    if not torch_is_available():
        return "torch is not installed (pip install torch)"
    if not optimised_inputs(view):
        return "the model has no float input"
    if not normalizations(view) and not class_scores(view):
        return "the model has neither BatchNormalization nor class scores"
    load_torch()
    from onnxfold.torch_graph.executor import unsupported_ops

    reasons = unsupported_ops(view)
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return reasons[0] + more if reasons else ""


def deep_inversion(
    view: GraphView, start: Mapping[str, Array] | Sequence[Mapping[str, Array]], *, seed: int = 0,
    threads: int | None = None, settings: InversionSettings = InversionSettings(), progress: Progress = silent,
) -> Inversion:  # fmt: skip
    """Optimise inputs until the network takes them for data."""
    require_torch("deep inversion")
    hindrance = obstacle(view)
    if hindrance:
        raise UnsupportedModelError(f"deep inversion is not possible: {hindrance}; use other inputs")
    from onnxfold.inputs.inversion.invert import invert, torch_threads

    batches = [dict(start)] if isinstance(start, Mapping) else [dict(batch) for batch in start]
    with torch_threads(threads):
        return invert(view, batches, settings, seed, progress)


#: Operators that pick classes by their scores, and those that hand values on.
_PICKS, _SAME_VALUES = ("ArgMax", "TopK"), ("Identity", "Cast", "Flatten", "Reshape", "Squeeze")


def optimised_inputs(view: GraphView) -> list[str]:
    """Return the float inputs that have a batch axis and another one."""
    return [n for n in view.input_names if is_float(view.elem_type(n)) and len(view.shape(n) or ()) >= 2]


def normalizations(view: GraphView) -> list[tuple[NodeProto, BatchNorm]]:
    """Return the BatchNormalizations with constant statistics that depend on an input that is optimised."""
    norms = ((node, batch_norm(view, node)) for node in reached_nodes(view.nodes, optimised_inputs(view)))
    known = ((node, norm) for node, norm in norms if norm is not None)
    return [(n, b) for n, b in known if all(map(view.is_weight, (b.scale, b.shift, b.mean, b.variance)))]


def has_statistics(view: GraphView) -> bool:
    """Whether a network holds the statistics of its layers: a normalisation of its inputs alone tells only theirs."""
    norms = normalizations(view)
    if not norms or not fused_layers(view):
        return bool(norms)
    reached = reached_nodes(view.nodes, optimised_inputs(view))
    layers = [layer.output for node in reached if (layer := layer_of(view, node)) is not None]
    behind_layers = {node_key(node) for node in reached_nodes(view.nodes, layers)}
    return any(node_key(node) in behind_layers for node, _ in norms)


def fused_layers(view: GraphView) -> list[tuple[NodeProto, str]]:
    """Return the nodes that add a constant bias to a convolution of what is optimised, and the biases.

    They are where an exporter leaves a BatchNormalization that it fuses.
    """
    reached = reached_nodes(view.nodes, optimised_inputs(view))
    layers = (layer_of(view, node) for node in reached if node.op_type == "Conv")
    return [(layer.last, layer.bias) for layer in layers if layer is not None and layer.bias]


def class_scores(view: GraphView) -> str:
    """Return the tensor with class scores before a softmax, of shape (samples, classes, 1, ...); '' if there is none.

    Sigmoids are no scores of classes that exclude each other.
    """
    samples = {shape[0] for name in optimised_inputs(view) if (shape := view.shape(name))}
    for output in view.output_names:
        name = picked_scores(view, output)
        producer, shape = view.producer(behind(view, name, _SAME_VALUES)), view.shape(name)
        if shape and shape[0] is not None and None not in samples and shape[0] not in samples:
            continue
        if not shape or len(shape) < 2 or shape[1] is None or shape[1] < 2 or any(d != 1 for d in shape[2:]):
            continue
        if producer is None or not is_float(view.elem_type(name)) or producer.op_type in ("Sigmoid", "HardSigmoid"):
            continue
        return producer.input[0] if producer.op_type == "Softmax" else name
    return ""


def picked_scores(view: GraphView, output: str) -> str:
    """Return the scores that the classes of an output are picked from; the output where it picks none."""
    pick = view.producer(behind(view, output, _SAME_VALUES))
    return pick.input[0] if pick is not None and pick.op_type in _PICKS else output
