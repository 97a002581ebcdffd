"""Agreement of two networks on inputs that no fold has seen.

Held-out inputs are generated like those that a fold is fitted on, with a seed that no fold uses; a user's samples are
held out of the fit (``ModelInputs.held_out``).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import prod
from os import PathLike
from typing import Any, Protocol

from onnxfold.errors import ConfigError, VerificationError
from onnxfold.fidelity.continuation import Continuation, continuing_model
from onnxfold.fidelity.measures import FidelityMeter
from onnxfold.files import Cache
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.run.session import Feeds, InputInfo, Session, batch_of, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images import synthetic
from onnxfold.inputs.input_plan import InputRequest, fewest_samples
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.language_model import ANCESTRAL
from onnxfold.inputs.tokens.tokenizer import Tokenizer, find_tokenizer
from onnxfold.inputs.walk_batches import BATCH, BATCH_BYTES, affordable_samples
from onnxfold.machine import memory
from onnxfold.progress import Progress, silent, under
from onnxfold.report import FidelityReport
from onnxfold.statistics.activations import Batches

#: Samples: an agreement of 95 % is then known to within about 3 points.
SAMPLES = 256
#: What running them through both networks may cost, in multiply-accumulates: some 20 s on two cores. ResNet18 at
#: 224 x 224 stays below it; larger networks get fewer samples, and a wider interval.
_COST = 1.3e12
#: Multiply-accumulates for each number of an input where they cannot be counted: as of a ResNet18 at 224 x 224.
_PER_NUMBER = 1e4
#: Tokens, of which as many are needed.
_TOKENS = 4_096
#: Added to a user's seed, which is a small number; fits draw theirs from that number upwards.
_OTHER_SEED = 0x4E1D_0075_0000_0000
#: Outputs that are kept where two networks do not fit into memory side by side, in bytes.
_KEPT_BYTES = 256 << 20
#: Memory that a batch may leave behind before what is free of it goes back to the system.
_LARGE_BYTES = 128 << 20


@dataclass(frozen=True, eq=False)
class Texts:
    """The writer, tokenizer and cache of a language model's held-out text."""

    writer: Session | None = None  # the original; tokens are drawn where it is not given
    beside: ModelLike | None = None  # its file, beside which its tokenizer may lie
    tokenizer: str | PathLike[str] | None = None
    cache: Cache | None = None  # where the text is looked for, and kept

    def continuation(
        self, networks: Sequence[object], views: Sequence[GraphView], progress: Progress, *, writes: bool = True
    ) -> Continuation | None:
        """Return the losses of two networks on texts that they read, and write; None where they continue none."""
        models = [m for n, v in zip(networks, views, strict=True) if (m := continuing_model(n, v)) is not None]
        with suppress(ConfigError):  # said where the text is made
            if len(models) == len(networks):
                return Continuation(models, views, self._read_tokenizer, progress=progress, writes=writes)
        return None

    @cached_property
    def _read_tokenizer(self) -> Tokenizer | None:
        return find_tokenizer(self.tokenizer, self.beside)[0]


class NotRunError(VerificationError):
    """The reference does not run on generated inputs."""


@dataclass(frozen=True)
class HeldOut:
    """Inputs that two networks are compared on: tokens, samples of a user, or arrays that are made when read."""

    kind: str  # description of the inputs
    source: Callable[[], Iterable[tuple[int, dict[str, Array]]]]  # reads the batches, each with its number of samples
    #: Types to give them in, where these are not those of the view: a float32 twin takes float32.
    infos: Sequence[InputInfo] = ()
    is_generated: bool = True
    usual: int = 0  # samples that there are where a network is not large

    @classmethod
    def of(cls, batches: Batches, kind: str, **facts: Any) -> "HeldOut":
        """Return inputs that are there already."""
        return cls(kind, lambda: ((sample_count(feeds), feeds) for feeds in batches), **facts)

    def first(self, batches: int) -> "HeldOut":
        """Return the first batches."""
        return replace(self, source=lambda: islice(self.source(), batches))

    @property
    def batches(self) -> Iterator[tuple[int, dict[str, Array]]]:
        """Batches in the types that a network takes them in, each with its number of samples."""
        for samples, feeds in self.source():
            types = {i.name: i.dtype for i in self.infos if i.name in feeds}
            yield samples, feeds | {name: feeds[name].astype(dtype, copy=False) for name, dtype in types.items()}


def held_out_inputs(
    view: GraphView, *others: GraphView, seed: int, infos: Sequence[InputInfo] = (), texts: Texts | None = None,
    progress: Progress = silent,
) -> HeldOut:  # fmt: skip
    """Return inputs that no fold was fitted on: for a language model, tokens of the kind that a fold takes."""
    interface, seed = token_interface(view), _OTHER_SEED + seed
    if interface is not None:
        texts = texts or Texts()
        interface = interface.with_session_types(infos)
        source = TokenSource(view, interface, texts.writer, texts.tokenizer, seed, texts.beside)
        # Told as the stages of the fold are, this would look as if it began anew.
        tell = under("verify, ", progress)
        requested, any_ids = InputRequest(seed=seed, sampling=ANCESTRAL), texts.writer is None
        text = source.make_text(requested, cache=texts.cache, any_ids=any_ids, tokens=_TOKENS, progress=tell)
        return HeldOut.of(source.batches(text.ids), text.kind)
    costs = [synthetic.sample_cost(graph) for graph in (view, *others)]
    numbers = sum(prod(d or 1 for d in (view.shape(name) or ())[1:]) for name in view.input_names)
    cost = sum(graph_cost or max(costs) or _PER_NUMBER * max(numbers, 1) for graph_cost in costs)
    samples = min(SAMPLES, max(int(_COST / cost), fewest_samples(view)))
    most_bytes = min(BATCH_BYTES, memory.limit() // 2)
    batch = batch_of(view) or affordable_samples(view, most_bytes, most=BATCH)

    def generate() -> Iterator[tuple[int, dict[str, Array]]]:
        for i in range(-(-samples // batch)):
            for feeds in synthetic.synthetic_inputs(view, samples=batch, seed=seed + 1000 * i):
                yield batch, feeds

    return HeldOut(synthetic.describe_inputs(view), generate, infos, usual=SAMPLES)


class Network(Protocol):
    """Source of a network's outputs: a :class:`~onnxfold.graph.run.session.Session`, or outputs of an earlier run."""

    output_names: list[str]

    def run(self, feeds: Feeds, /) -> list[Array]:
        """Return all outputs for one batch."""


@dataclass(eq=False)
class Answering:
    """A network that a function stands for."""

    output_names: list[str]
    run: Callable[[Feeds], list[Array]]


def recorded(network: Network, inputs: HeldOut) -> tuple[Answering, HeldOut]:
    """Return a record of the answers of a network to some batches, so that it need not stay in memory.

    Also returned are the inputs that there are outputs of: all, or as many as the memory for outputs holds.
    """
    outputs: list[list[Array]] = []
    left = _KEPT_BYTES
    for _, feeds in inputs.batches:
        outputs.append(_reference_run(network, feeds))
        left -= sum(o.nbytes for o in outputs[-1])
        if left < 0:
            break
    following = iter(outputs)
    return Answering(network.output_names, lambda _: next(following)), inputs.first(len(outputs))


def measure_fidelity(
    reference: Network, candidate: Network, inputs: HeldOut, *, called: str,
    view: GraphView | None = None, texts: Continuation | None = None, shown: HeldOut | None = None,
) -> FidelityReport:  # fmt: skip
    """Run two networks on inputs; return how close they are, and what they lose on texts that they continue.

    Beside `shown` samples, on which the candidate was fitted, an agreement on classes is also that expected of both.
    """
    meter, floor = FidelityMeter(reference.output_names, view), memory.give_back()
    for samples, feeds in inputs.batches:
        following = None if texts is None else texts.following(feeds)
        meter.add(_reference_run(reference, feeds), candidate.run(feeds), samples=samples, following=following)
        if memory.held_bytes() > floor + _LARGE_BYTES:
            memory.give_back()
    if shown is not None and meter.names_classes:
        for _, feeds in shown.batches:
            meter.see(_reference_run(reference, feeds))
    report = replace(meter.report(f"{called} {inputs.kind}"), is_generated=inputs.is_generated)
    return report if texts is None else texts.complete(report, meter, report.inputs)


def _reference_run(reference: Network, feeds: Feeds) -> list[Array]:
    try:
        return reference.run(feeds)
    except VerificationError as error:
        raise NotRunError(str(error)) from None
