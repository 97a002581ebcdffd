"""Settings of deep inversion, and its result."""

import math
from dataclasses import dataclass

from onnxfold.graph.tensors import Array


@dataclass(frozen=True)
class InversionSettings:
    """Terms of the minimised loss, and the number of steps."""

    steps: int = 40  # steps per batch where the model has BatchNormalizations
    steps_fused: int = 18  # steps per batch where BatchNormalizations seem to be fused into layers
    #: Steps per batch where it has none: class scores alone lead away from data when followed for long.
    steps_without_statistics: int = 15
    learning_rate: float = 0.05  # of Adam, in units of the inputs
    class_weight: float = 0.1  # weight of the cross-entropy
    class_weight_without_statistics: float = 1.0
    evenness_weight: float = 1.0  # weight of the unevenness of layers with a fused BatchNormalization
    variation_weight: float = 0.01  # weight of the total variation along spatial axes
    variation_weight_without_statistics: float = 0.1
    square_weight: float = 0.001  # weight of the mean square
    shift: int = 2  # every step sees the batch rolled by up to so many positions along every spatial axis
    batch: int = 128  # samples per batch, if memory allows; the statistics of fewer samples are noisier
    memory_bytes: int = 1 << 30  # memory for the activations of one batch
    #: Multiply matrices in bfloat16 where the processor does: twice as fast. Sums, statistics and inputs stay float32.
    bfloat16: bool = True
    #: Share of the steps, at the end, over which the learning rate falls to zero: at a constant one, single steps
    #: overshoot and the last one may be such.
    settling: float = 0.25
    #: Let the rate fall at once when the error of the statistics has, in the median over `window` steps, fallen by less
    #: than this fraction since the `window` before; without statistics the loss decides.
    window: int = 15
    tolerance: float = 0.01
    #: Time for all batches: those that would exceed it settle earlier, and the result hangs on the machine's speed.
    seconds: float = math.inf
    #: Steps of each batch, or of all, whatever the statistics and the clock say; empty to let them decide.
    exact_steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class LossTerms:
    """Parts of the objective, unweighted and averaged over batches; None where the model has no such part."""

    statistics: float | None  # mean squared relative error of means and deviations, summed over the normalisations
    evenness: float | None  # unevenness of the statistics over the channels of a layer, summed over the layers
    class_scores: float | None  # cross-entropy of the intended classes, in nats
    variation: float  # total variation and mean square of the inputs
    square: float


@dataclass(frozen=True)
class Inversion:
    """Inputs, and how far the optimisation came."""

    inputs: list[dict[str, Array]]  # batches of the sizes and types that were given
    initial: LossTerms  # of the inputs that were given, and of these
    final: LossTerms
    #: Steps of each of the batches that were optimised one after the other; as `exact_steps` they give the same inputs.
    steps_per_batch: tuple[int, ...]
    planned: int  # steps per batch that were planned
    cut: bool = False  # whether the clock made them fewer

    @property
    def steps(self) -> int:
        """Steps in all."""
        return sum(self.steps_per_batch)

    @property
    def batches(self) -> int:
        """Batches that were optimised, one at a time."""
        return len(self.steps_per_batch)
