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
    """Window that an output position of a convolution reads, over d spatial axes of data of shape (N, C, ...)."""

    kernel: tuple[int, ...]  # one number per spatial axis; `pads` are those before it
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]  # empty where padding is chosen at run time
    groups: int  # channels are read in so many parts, each by a part of the filters

    @property
    def taps(self) -> int:
        """Number of positions that one output reads."""
        return prod(self.kernel)


@dataclass(frozen=True)
class BiasInput:
    """Where an operator takes a vector that is added to its channels, and what else that vector can stand for."""

    number: int = -1  # of the input, -1 where the operator takes none
    factor: float = 1.0  # of that vector
    #: Whether a channel of the data that is the same number everywhere adds its rows times it, the same everywhere.
    takes_constants: bool = False


@dataclass(frozen=True)
class Linear:
    """Sums of products of an input with a weight, and the bias that the operator may add to them."""

    products: tuple[Lengths, ...]  # their product is the number of multiply-accumulates
    #: The constant operand, '' where there is none: both are activations, or it is computed at run time.
    weight: str = ""
    #: The weight's axis with one entry per output channel; None where channels of the result are not followed.
    rows: Axis | None = None
    #: The axis of the result that the channels lie on, in the order of `rows`; negative counts from the end.
    channel_axis: int = 1
    bias: BiasInput = BiasInput()  # a vector that is added along `channel_axis`
    is_plain: bool = True  # whether nothing but that vector is added, and no activation follows inside the operator
    is_depthwise: bool = False  # whether every output channel reads a single input channel
    #: For a convolution, whose weight is shaped (filters, channels read, *kernel): what a position reads.
    window: Window | None = None

    @property
    def convolved_parts(self) -> int:
        """In how many parts the channels of such a convolution are read; 0 for every other operator."""
        return 0 if self.window is None else self.window.groups

    @property
    def fixed_window(self) -> Window | None:
        """The window, where it is known before the model runs."""
        return self.window if self.window is not None and self.window.pads else None


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
    """Gates computed from an input and from the operator's own last result, and a bias for each of the two."""

    inputs: str  # weights of shape (directions, gates * hidden, channels read): of the input, and of the last result
    states: str
    biases: int  # number of the input that holds both biases behind each other, shape (directions, 2 * gates * hidden)


Computation = Linear | Shift | BatchNorm | Recurrence
