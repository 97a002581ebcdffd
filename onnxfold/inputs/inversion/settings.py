"""Settings of deep inversion, and its result."""

import math
from dataclasses import dataclass

from onnxfold.graph.tensors import Array


@dataclass(frozen=True)
class InversionSettings:
    """Terms of the minimised loss, and the number of steps.

    Parameters
    ----------
    steps : int
        Steps per batch where the model has BatchNormalizations.
    steps_fused : int
        Steps per batch where BatchNormalizations seem to be fused into layers.
    steps_without_statistics : int
        Steps per batch where it has none: class scores alone lead away from data when followed for long.
    learning_rate : float
        Of Adam, in units of the inputs.
    class_weight, class_weight_without_statistics : float
        Weight of the cross-entropy.
    evenness_weight : float
        Weight of the unevenness of layers with a fused BatchNormalization.
    variation_weight, variation_weight_without_statistics : float
        Weight of the total variation along spatial axes.
    square_weight : float
        Weight of the mean square.
    shift : int
        Every step sees the batch rolled by up to so many positions along every spatial axis.
    batch : int
        Samples per batch, if memory allows; the statistics of fewer samples are noisier.
    memory_bytes : int
        Memory for the activations of one batch.
    bfloat16 : bool
        Multiply matrices in bfloat16 where the processor does: twice as fast. Sums, statistics and inputs stay float32.
    settling : float
        Share of the steps, at the end, over which the learning rate falls to zero: at a constant one, single steps
        overshoot and the last one may be such.
    window, tolerance : int, float
        Let the rate fall at once when the error of the statistics has, in the median over `window` steps, fallen by
        less than this fraction since the `window` before; without statistics the loss decides.
    seconds : float
        Time for all batches: those that would exceed it settle earlier, and the result hangs on the machine's speed.
    exact_steps : tuple of int
        Steps of each batch, or of all, whatever the statistics and the clock say; empty to let them decide.
    """

    steps: int = 40
    steps_fused: int = 18
    steps_without_statistics: int = 15
    learning_rate: float = 0.05
    class_weight: float = 0.1
    class_weight_without_statistics: float = 1.0
    evenness_weight: float = 1.0
    variation_weight: float = 0.01
    variation_weight_without_statistics: float = 0.1
    square_weight: float = 0.001
    shift: int = 2
    batch: int = 128
    memory_bytes: int = 1 << 30
    bfloat16: bool = True
    settling: float = 0.25
    window: int = 15
    tolerance: float = 0.01
    seconds: float = math.inf
    exact_steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class LossTerms:
    """Parts of the objective, unweighted and averaged over batches; None where the model has no such part.

    Parameters
    ----------
    statistics : float or None
        Mean squared relative error of means and deviations, summed over the normalisations.
    evenness : float or None
        Unevenness of the statistics over the channels of a layer, summed over the layers.
    class_scores : float or None
        Cross-entropy of the intended classes, in nats.
    variation, square : float
        Total variation and mean square of the inputs.
    """

    statistics: float | None
    evenness: float | None
    class_scores: float | None
    variation: float
    square: float


@dataclass(frozen=True)
class Inversion:
    """Inputs, and how far the optimisation came.

    Parameters
    ----------
    inputs : list of dict of str to ndarray
        Batches of the sizes and types that were given.
    initial, final : LossTerms
        Of the inputs that were given, and of these.
    steps_per_batch : tuple of int
        Steps of each of the batches that were optimised one after the other; as `exact_steps` they give the same
        inputs.
    planned : int
        Steps per batch that were planned.
    cut : bool
        Whether the clock made them fewer.
    """

    inputs: list[dict[str, Array]]
    initial: LossTerms
    final: LossTerms
    steps_per_batch: tuple[int, ...]
    planned: int
    cut: bool = False

    @property
    def steps(self) -> int:
        """Steps in all."""
        return sum(self.steps_per_batch)

    @property
    def batches(self) -> int:
        """Batches that were optimised, one at a time."""
        return len(self.steps_per_batch)
