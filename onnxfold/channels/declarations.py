"""Declarations that a channel rule makes about a node.

A rule never edits. It states how positions along the axes of the node's tensors belong together
(:class:`Link`, :class:`Repeat`), which weight axes produce or consume channels (:class:`Use`), which axes must keep
their width (:class:`Block`), and which attributes or shape inputs count
channels (:class:`Count`) or number them (:class:`Select`).

What an operator computes (:data:`Computation`), in the detail that merges, repairs and budgets need, it may declare
beside its links (`computes` in :func:`~onnxfold.channels.context.channel_rule`). That holds whether or not the
channels of a node can be followed, and is read from attributes and constants alone.
"""

from dataclasses import dataclass
from enum import Enum
from math import prod

import numpy as np
import numpy.typing as npt

from onnxfold.report import RefusalKind

Positions = npt.NDArray[np.int64]

#: Axes with more positions than this are treated as if their width were unknown; no weight has so many channels.
MAX_WIDTH = 1 << 23


@dataclass(frozen=True, order=True)
class Axis:
    """One axis of one tensor."""

    tensor: str
    axis: int  # not negative
    #: Above 1 for a weight whose axis 0 holds `blocks` groups (grouped Conv): position ``j * shape[axis] + t`` is entry
    #: `t` of `axis` inside the j-th group of axis 0. For an activation, whose axis in front holds `blocks` groups of
    #: channels (of a GroupNormalization), likewise.
    blocks: int = 1


class Role(Enum):
    """The part of a weight in a channel, which determines its merge."""

    PRODUCER = "producer"  #: rows that compute the channel: encoded (mean)
    CONSUMER = "consumer"  #: columns that read the channel: decoded (sum)
    BIAS = "bias"  #: added to the channel: encoded
    PARAMETER = "parameter"  #: any other per-channel constant: encoded
    SCALE = "scale"  #: BatchNormalization's gamma
    SHIFT = "shift"  #: BatchNormalization's beta
    MEAN = "mean"  #: BatchNormalization's running mean
    VARIANCE = "variance"  #: BatchNormalization's running variance
    BASIS = "basis"  #: of a table that is looked up and scored by: its rows are read in it, so it is decoded
    GAIN = "gain"  #: of a norm over channels: the same number for all of them where they are rotated, so any is taken


@dataclass(frozen=True, eq=False)
class Link:
    """Position ``a_positions[i]`` of axis `a` is the same channel as ``b_positions[i]`` of axis `b`."""

    a: Axis
    b: Axis
    a_positions: Positions
    b_positions: Positions


@dataclass(frozen=True)
class Use:
    """A weight axis holds one entry per channel."""

    axis: Axis
    role: Role
    node: str  #: first output of the node, which names it uniquely
    channels: Axis  #: the axis of the activation (or result) that the entries belong to


@dataclass(frozen=True)
class Block:
    """The axis must keep its width."""

    axis: Axis
    reason: str
    node: str
    kind: RefusalKind = RefusalKind.OPERATOR


@dataclass(frozen=True)
class EqualBlocks:
    """`blocks` equal parts of the axis must stay equally long (grouped convolution).

    Where they are `averaged`, mean and variance are taken over each part: merging equal positions changes nothing only
    if every position of the axis stands for equally many.
    """

    axis: Axis
    blocks: int
    node: str
    averaged: bool = False


@dataclass(frozen=True, eq=False)
class Repeat:
    """Every channel of `source` stands for equally many neighbouring channels of `result` (grouped-query attention).

    Position ``source_positions[i]`` is the channel that position ``result_positions[i]`` belongs to. Where the channels
    of `source` may go, they and those that belong to them are one, as under a :class:`Link`. Where they must stay,
    those of `result` may go by themselves, equally many from each of the `blocks` parts of `result`; likewise where
    `source` has a single channel.
    """

    source: Axis
    result: Axis
    source_positions: Positions
    result_positions: Positions
    blocks: int
    node: str


@dataclass(frozen=True)
class Apart:
    """The mean of different channels of the axis means nothing: they are dropped, or merged with exact duplicates.

    Heads of attention are such channels. What a head computes is a product of its queries and keys, and the mean of two
    heads' queries times the mean of their keys has nothing to do with either.
    """

    axis: Axis


@dataclass(frozen=True)
class Rotatable:
    """The node computes the same in any orthonormal basis of the axis, once its weights are written in that basis.

    A product that sums over the axis does, and a table whose rows lie along it. Channels are rotatable where all nodes
    that touch them say so.
    """

    axis: Axis
    node: str


@dataclass(frozen=True)
class Norm:
    """The node divides the sum of `sources` by its length along an axis, and scales every channel of its result.

    Beside this, a rule blocks these axes. Where they hold all channels of a stream that may be rotated, the blocks are
    lifted: an orthonormal basis leaves lengths as they are, and scales go into what reads the result.
    """

    sources: tuple[Axis, ...]  # the axis of everything that is added up, and of the sum where it is a result, too
    axis: Axis  # the same axis of the result
    node: str  # first output of the node
    scale: Axis  # the axis of a weight with a factor per channel
    shift: Axis | None = None  # likewise, of what is added to the result
    bias: Axis | None = None  # likewise, of what is added to the sources
    centred: bool = False  # whether the mean over the axis is subtracted first
    width: int = 0  # length of the axis


@dataclass(frozen=True)
class Count:
    """A number in the node that counts positions ``start:stop`` of an axis, `each` of which are one.

    `place` is the name of an attribute or the number of a constant input; `element` is the index in the
    list or tensor (None for a scalar attribute).
    """

    node: str
    axis: Axis
    start: int
    stop: int
    place: str | int
    element: int | None = None
    each: int = 1


@dataclass(frozen=True)
class Select:
    """A constant input that holds positions of `source`, which has `width` of them, one for each position of `axis`."""

    node: str
    axis: Axis
    source: Axis
    input_index: int
    width: int


@dataclass(frozen=True)
class Tie:
    """Axes of the model's inputs and outputs that may become shorter, all of them equally long.

    With a `reason` they stay as they are. No rule says this: it is what the user allows.
    """

    axes: tuple[Axis, ...]
    reason: str = ""


Declaration = Select | Link | Repeat | Apart | Rotatable | Norm | Use | Block | EqualBlocks | Count


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
    steps: Lengths  # the axes that are multiplied with both weights one position after the other


Computation = Linear | Shift | BatchNorm | Recurrence
