"""The number of tokens that a network is run on, and may write itself: by counted cost and by memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnxfold.budget.costs.running import count_macs, count_token_macs, model_size
from onnxfold.config.quantities import show_bytes
from onnxfold.graph.shapes.footprint import Footprint
from onnxfold.graph.tensors import Shape
from onnxfold.graph.view import GraphView
from onnxfold.inputs.input_plan import InputRequest, over_time, usual_sizes
from onnxfold.inputs.tokens.interface import Purpose, TokenInterface, cache_of, fixed_past, token_interface
from onnxfold.machine import memory
from onnxfold.report import ModelSize

#: Positions that covariances are computed of; with half as many, the least squares begin to overfit wide layers.
TOKENS = 12_288
_FEWEST_TOKENS = 4_096
#: Positions of one sequence: of what continues a text; where nothing is given, of what it writes itself, which has more
#: subjects and repeats itself less the more beginnings there are; and of what reads a sentence.
GIVEN_TEXT, OWN_TEXT, SENTENCE = 256, 128, 64
#: Sequences where every one of them comes with an image, or another input that takes time to make.
_BESIDE_OTHERS = 256
#: Tokens that a model writes itself for every one that is given, as far as these are the usual number; where they are
#: fewer, it writes what is left of that.
_OWN = 1 / 3
#: Highest cost of a run over all tokens, in multiply-accumulates: about two minutes on two cores.
_RUN_COST = 4e12
#: Multiply-accumulates per second on two cores, where many sequences are written side by side.
_WRITTEN_PER_SECOND = 2.5e10
#: Seconds that writing may take unless a limit is given.
_WRITING_SECONDS = 120.0
#: Fewer tokens than this are not worth writing.
_FEWEST_WRITTEN = 2_048
#: Rereading less often than this leaves most tokens as they were drawn at first.
_FEWEST_READINGS = 6


@dataclass(frozen=True)
class TokenPlan:
    """Numbers of tokens."""

    count: int
    length: int
    notes: tuple[str, ...] = ()  # limits that reduced the request

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.count * self.length


def size_of(view: GraphView) -> ModelSize:
    """Return the size of a model.

    Where lengths are open, its multiply-accumulates are per token if it takes tokens, and else those of usual sizes.
    """
    size = model_size(view)
    if size.macs is not None:
        return size
    interface = token_interface(view)
    if interface is not None and not interface.inputs_for(Purpose.OTHER):
        return replace(size, macs=count_token_macs(view), macs_per="token")
    for usual in usual_sizes(view):
        sized = view.copy()
        sized.assume(usual)
        macs = count_macs(sized)
        if macs is not None:
            return replace(size, macs=macs, macs_per=f"sample of size {_sizes_in_words(view, usual)}")
    return size


def _sizes_in_words(view: GraphView, sizes: Mapping[str, Shape]) -> str:
    """Return the sizes of the free dimensions other than the batch, of an input that has most of them."""
    shapes = ((sizes[name], view.shape(name) or ()) for name in sizes)
    free = [[d for d, declared in zip(*pair, strict=True) if declared is None and d] for pair in shapes]
    most = max(free, key=len)
    return " x ".join(map(str, most))


def planned_tokens(
    view: GraphView, interface: TokenInterface, requested: InputRequest, *, tokens: int = TOKENS, text: int = OWN_TEXT
) -> TokenPlan:
    """Return on how many tokens a network is run."""
    usual = text if continues_text(view, interface) else SENTENCE
    length = interface.length(usual)
    if requested.samples is None:
        tokens = min(tokens, _affordable(view))
        most = _BESIDE_OTHERS if interface.inputs_for(Purpose.OTHER) else tokens
        wanted = max(min(tokens // length, most), 1)
    else:
        wanted = requested.samples
    count = min(wanted, max(_most_sequences(view, interface, length), 1))
    fixed = interface.fixed_batch or 1
    count = max(count // fixed, 1) * fixed
    if requested.samples is None or count >= wanted:
        return TokenPlan(count, length)
    limit = f"the memory limit ({show_bytes(memory.limit())})"
    return TokenPlan(count, length, (f"{wanted} sequences were requested; {limit} allows {count}",))


def planned_beside(view: GraphView, interface: TokenInterface, text_shape: tuple[int, ...]) -> TokenPlan | None:
    """Return how many sequences a network that continues texts writes beside given ones; None where none fit."""
    count, length = text_shape
    own = interface.length(min(GIVEN_TEXT, length))
    usual = min(TOKENS, _affordable(view))
    tokens = max(_OWN * min(count * length, usual), usual - count * length)
    fits = (_most_sequences(view, interface, length) - count) * length // own
    fixed = interface.fixed_batch or 1
    sequences = min(math.ceil(tokens / own), fits) // fixed * fixed
    return TokenPlan(sequences, own) if sequences > 0 else None


def _affordable(view: GraphView) -> int:
    """Return how many tokens one run may read."""
    return max(int(_RUN_COST / max(float(count_token_macs(view)), 1.0)), _FEWEST_TOKENS)


def affordable_text(view: GraphView, plan: TokenPlan, requested: InputRequest) -> tuple[int, str]:
    """Return how many sequences a decoder with caches may write, and why none where that is 0."""
    cost = max(float(count_token_macs(view)), 1.0)
    count = int(requested.limit(_WRITING_SECONDS) * _WRITTEN_PER_SECOND / cost) // plan.length
    if count >= plan.count or count * plan.length >= _FEWEST_WRITTEN:
        return min(count, plan.count), ""
    return 0, over_time("writing text", cost * plan.tokens / _WRITTEN_PER_SECOND)


def affordable_readings(view: GraphView, plan: TokenPlan, requested: InputRequest) -> tuple[int, str]:
    """Return how often a network without caches may read all sequences, and why not at all where that is 0."""
    cost = max(float(count_token_macs(view)), 1.0) * plan.tokens
    readings = int(requested.limit(_WRITING_SECONDS) * _WRITTEN_PER_SECOND / cost)
    if readings >= min(_FEWEST_READINGS, plan.length):
        return min(readings, plan.length), ""
    return 0, over_time("writing text", cost * _FEWEST_READINGS / _WRITTEN_PER_SECOND)


def continues_text(view: GraphView, interface: TokenInterface) -> bool:
    """Whether a network says how a text goes on, and does not read sentences."""
    scores_words = any((view.shape(name) or (0,))[-1] == interface.vocabulary for name in view.output_names)
    return scores_words or bool(interface.inputs_for(Purpose.CACHE, Purpose.CAUSAL_MASK))


def _most_sequences(view: GraphView, interface: TokenInterface, length: int) -> int:
    """Return how many sequences fit into the memory limit, with the network and its fold beside each other."""
    past = fixed_past(interface)
    shapes: dict[str, tuple[int, ...]] = {}
    for info in interface.inputs:
        if info.purpose is Purpose.CACHE:
            shapes[info.name] = cache_of(info, 1, past)
        elif info.shape:
            along = past + length if info.purpose is Purpose.MASK else length
            shapes[info.name] = tuple(d or (1 if axis == 0 else along) for axis, d in enumerate(info.shape))
    batch = interface.fixed_batch or 1
    return Footprint.of(view, shapes, walked=True).count_fitting(2, memory.limit()) * batch
