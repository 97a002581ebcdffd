"""Computations of operators, in the detail that merges, repairs and budgets need.

A channel rule may declare this beside its links (`computes` in :func:`~onnxfold.channels.registry.channel_rule`). It
holds whether or not the channels of a node can be followed, and is read from attributes and constants alone.
"""

from dataclasses import dataclass
from math import prod

from onnxfold.channels.declarations import Axis


@dataclass(frozen=True)
class Lengths:
    """The lengths of neighbouring axes of a tensor, ``start:stop`` as in a slice; of all axes by default."""

    tensor: str
    start: int | None = None
    stop: int | None = None


@dataclass(frozen=True)
class Window:
    """What one output position of a convolution reads, over d spatial axes of data of shape (N, C, ...).

    Parameters
    ----------
    kernel, strides, dilations, pads : tuple of int
        One number per spatial axis; `pads` are those before it.
    groups : int
        Channels are read in so many parts, each by a part of the filters.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int

    @property
    def taps(self) -> int:
        """Number of positions that one output reads."""
        return prod(self.kernel)


@dataclass(frozen=True)
class Linear:
    """Sums of products of an input with a weight, and the bias that the operator may add to them.

    Parameters
    ----------
    products : tuple of Lengths
        Their product is the number of multiply-accumulates.
    weight : str
        The constant operand, '' where there is none: both are activations, or it is computed at run time.
    rows : Axis, optional
        The weight's axis with one entry per output channel; None where channels of the result are not followed.
    channel_axis : int
        The axis of the result that the channels lie on, in the order of `rows`; negative counts from the end.
    bias_input : int
        Number of the input that takes a vector to be added along `channel_axis`, -1 where the operator takes none.
    bias_factor : float
        What that vector is multiplied by.
    is_plain : bool
        Whether nothing but that vector is added, and no activation follows inside the operator.
    is_depthwise : bool
        Whether every output channel reads a single input channel.
    window : Window, optional
        For a convolution, whose weight is shaped (filters, channels read, *kernel): what a position reads.
    convolved_parts : int
        For a convolution of this shape: in how many parts its channels are read; 0 for every other operator.
    """

    products: tuple[Lengths, ...]
    weight: str = ""
    rows: Axis | None = None
    channel_axis: int = 1
    bias_input: int = -1
    bias_factor: float = 1.0
    is_plain: bool = True
    is_depthwise: bool = False
    window: Window | None = None
    convolved_parts: int = 0


@dataclass(frozen=True)
class Shift:
    """A constant that is added to an activation, its axes aligned at the right."""

    constant: str


@dataclass(frozen=True)
class BatchNorm:
    """``scale (x - mean) / sqrt(variance + epsilon) + shift`` for every channel, on axis 1; names of the parameters."""

    scale: str
    shift: str
    mean: str
    variance: str
    epsilon: float


@dataclass(frozen=True)
class Recurrence:
    """Gates computed from an input and from the operator's own last result, and a bias for each of the two.

    Parameters
    ----------
    inputs, states : str
        Weights of shape (directions, gates * hidden, channels read): of the input, and of the last result.
    biases : int
        Number of the input that holds both biases behind each other, shape (directions, 2 * gates * hidden).
    """

    inputs: str
    states: str
    biases: int


Computation = Linear | Shift | BatchNorm | Recurrence
