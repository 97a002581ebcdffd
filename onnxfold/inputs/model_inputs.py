"""The choice of inputs to run a network on, with the reason."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike

import numpy as np

from onnxfold.budget.costs.macs import forward_cost
from onnxfold.channels.layers import own_statistics
from onnxfold.config.pixels import PixelScale
from onnxfold.errors import ConfigError
from onnxfold.files import Cache
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.run.session import fixed_batch, in_batches, sample_count
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_inputs import input_infos
from onnxfold.inputs.given_samples import Given, given_samples, is_folder, text_file
from onnxfold.inputs.images.input_scale import input_scale, standardise
from onnxfold.inputs.images.synthetic import sample_cost, synthetic_inputs
from onnxfold.inputs.input_plan import InputRequest, planned_images, planned_inversion, planned_samples, too_long
from onnxfold.inputs.inversion.cut_note import cut_note
from onnxfold.inputs.inversion.deep_inversion import deep_inversion, obstacle
from onnxfold.inputs.inversion.targets import optimised_inputs
from onnxfold.inputs.kept_inputs import CHECKS_OF_GENERATED, KeptInputs, Shelf, kinds_of
from onnxfold.inputs.own_text import with_own_text
from onnxfold.inputs.parted import quarters, split_samples
from onnxfold.inputs.sample_kinds import DATA, DOUBT_OF_TEXT, INVERTED, LEAVES, NOISE, SAMPLE_KINDS, SampleKind
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens.answers import TokenAnswers
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.token_text import TokenText
from onnxfold.progress import Progress, silent
from onnxfold.statistics.activations import Batches
from onnxfold.statistics.observe import FitRules
from onnxfold.statistics.shrinkage import NO_DOUBT

_BATCH = 64
#: Tokens that show the effect of a fold.
_FRONT_TOKENS = 1_024


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """Inputs, and where they come from."""

    batches: Batches
    kind: str  # a row of :data:`onnxfold.inputs.sample_kinds.SAMPLE_KINDS`
    reason: str  # why these, for the report
    fixed_batch: bool = False  # whether the model takes batches of this size only
    steps: tuple[int, ...] = ()  # inversion steps of every batch; as a request they give the same inputs again
    cut: bool = False  # whether the time limit stopped an inversion
    notes: tuple[str, ...] = ()  # limits that reduced the request
    short: dict[str, Array] | None = None  # A batch of a few short sequences, of a language model
    answers: TokenAnswers | None = None  # facts about the outputs of a language model; None for other networks
    words: Matrix | None = None  # how common every token is, of a language model
    held_out: Batches = field(default_factory=list)  # batches of a user's samples that no fold is shown

    def few_samples(self, samples: int) -> dict[str, Array]:
        """Return so many samples for what runs the network once per group: of a language model, a few short ones."""
        return self._first_samples(samples) if self.short is None else self.short

    def _first_samples(self, samples: int) -> dict[str, Array]:
        first = self.batches[0]
        return first if self.fixed_batch else next(in_batches(first, samples))

    @property
    def are_tokens(self) -> bool:
        """Whether they are those of a language model."""
        return self.answers is not None

    @property
    def continues_text(self) -> bool:
        """Whether the network continues texts, of which these are some."""
        return self.answers is not None and self.answers.continue_text

    @property
    def front(self) -> Batches:
        """Batches that show the effect of a fold: all, or a few texts of a language model, whose scores are large."""
        if not self.are_tokens:
            return self.batches
        length = max((values.shape[1] for values in self.batches[0].values() if values.ndim in (2, 3)), default=1)
        return [self._first_samples(max(_FRONT_TOKENS // max(length, 1), 1))]

    @property
    def facts(self) -> SampleKind:
        """Facts about their kind."""
        return SAMPLE_KINDS[self.kind]

    @cached_property
    def fit_rules(self) -> FitRules:
        """How a fit on them weights, doubts and follows what they show.

        Covariances are shrunk where there may be too few samples, or of too doubtful a kind, for those of wide layers.
        Small images are generated in the number that is needed; of tokens there could always be more.
        """
        doubt = self.facts.doubt
        if self.facts.doubted_from:
            images = self.images
            doubt = doubt if images is not None and max(images.shape[2:]) >= self.facts.doubted_from else NO_DOUBT
        doubt = DOUBT_OF_TEXT if self.continues_text else doubt
        return FitRules(
            matches=not self.facts.has_data_statistics,
            shrinks=self.facts.is_data or self.facts.are_tokens or doubt != NO_DOUBT,
            doubt=doubt,
            by_length=self.continues_text,
            alone=self.continues_text,
        )

    @property
    def samples(self) -> int:
        """Number of samples."""
        return _count(self.batches)

    @property
    def images(self) -> Array | None:
        """All samples of the first input with the shape of images; None if no input has it."""
        name = next((n for n, v in self.batches[0].items() if v.ndim == 4 and v.dtype.kind == "f"), None)
        return None if name is None else np.concatenate([batch[name] for batch in self.batches])

    def to_keep(self) -> KeptInputs:
        """Return them as they lie in the cache; what limited the request is found anew."""
        facts = {"kind": self.kind, "reason": self.reason, "steps": list(self.steps), "notes": list(self.notes)}
        return KeptInputs(self.batches, facts)

    @classmethod
    def from_kept(cls, kept: KeptInputs, *, fixed_batch: bool) -> "ModelInputs":
        """Return inputs from the cache."""
        facts = kept.facts
        steps, notes = tuple(facts["steps"]), tuple(facts["notes"])
        return cls(kept.batches, facts["kind"], facts["reason"], fixed_batch, steps, notes=notes)

    def split(self) -> tuple["ModelInputs", "ModelInputs"]:
        """Return three quarters of the samples, and the last quarter, to be held out; each tells its number."""
        if self.fixed_batch and len(self.batches) < 4:
            raise ConfigError("the model's fixed batch leaves too few batches to hold some out: give more samples")
        batches = self.batches if len(self.batches) >= 4 else [part for b in self.batches for part in quarters(b)]
        if len(batches) < 2:
            raise ConfigError("there are too few samples to hold some out: give more, or generate more")
        cut = len(batches) - max(len(batches) // 4, 1)
        seen, held_out = self._part(batches[:cut], "fitted on"), self._part(batches[cut:], "held out")
        if self.short is not None:  # the front of all samples
            seen = replace(seen, short=next(in_batches(self.short, seen.samples)))
        return seen, held_out

    def _part(self, batches: Batches, use: str) -> "ModelInputs":
        return replace(self, batches=batches, reason=f"{self.reason}; {_count(batches)} of {self.samples} {use}")


def model_inputs(
    view: GraphView,
    kind: str,
    calibration: Given | None = None,
    *,
    source: ModelLike | None = None,
    tokenizer: str | PathLike[str] | None = None,
    scale: PixelScale | None = None,
    samples: int | None = None,
    seconds: float | None = None,
    steps: Sequence[int] = (),
    seed: int = 0,
    adds_text: bool = False,
    cache: Cache | None = None,
    progress: Progress = silent,
) -> ModelInputs:
    """Return the inputs that a network is run on."""
    interface = token_interface(view)
    if interface is not None:
        progress(f"model takes {interface}", 0, 0)
    texts = None if interface is None else TokenSource(view, interface, source, tokenizer, seed)
    if calibration is not None:
        made = _user_inputs(view, calibration, scale, samples, texts)
        if texts is None or not adds_text:
            return made
        return with_own_text(made, texts, InputRequest(seconds=seconds), seed=seed, cache=cache, progress=progress)
    if kind == DATA:
        raise ConfigError(
            "this method takes statistics from your data: give --calibration FILE.npz or a folder of images"
        )
    start = time.monotonic()
    progress("generate inputs", 0, 0)
    if texts is not None and kind != INVERTED:
        return _token_inputs(texts, kind, InputRequest(samples, seconds, tuple(steps)), seed, cache, progress)
    cost, requested = forward_cost(view) or sample_cost(view), InputRequest(samples, seconds, tuple(steps))
    count, notes = planned_samples(view, cost, requested)
    plan = (
        kind,
        requested,
        seed,
        count,
        planned_inversion(count, cost, requested, has_statistics=_has_statistics(view)),
    )
    shelf = Shelf(cache or Cache(), view, plan)
    kept = shelf.find(kinds_of(view), CHECKS_OF_GENERATED)
    if kept is not None:
        inputs = ModelInputs.from_kept(kept, fixed_batch=_fixed_batch(view) is not None)
    else:
        inputs = _generate_inputs(view, kind, cost, count, requested, seed, start, progress)
        if not inputs.cut:
            shelf.keep(inputs.to_keep())
    return replace(inputs, notes=notes + inputs.notes)


def _token_inputs(
    texts: TokenSource, kind: str, requested: InputRequest, seed: int, cache: Cache | None, progress: Progress
) -> ModelInputs:
    """Return tokens, with all other inputs: never images, whatever is requested."""
    if requested.steps:
        raise ConfigError("input_steps is given, but tokens are not inverted: leave it out")
    text, notes = texts.make_text(requested, seed=seed, cache=cache, any_ids=kind == NOISE, progress=progress)
    return _text_inputs(texts, text, notes)


def _text_inputs(texts: TokenSource, text: TokenText, notes: tuple[str, ...] = ()) -> ModelInputs:
    """Return a text as inputs of the model."""
    batches, is_fixed = texts.batches(text.ids), texts.interface.fixed_batch is not None
    short, answers = texts.short_batch(text.ids, text.kind), texts.answers
    words = texts.words(text.ids, text.kind)
    return ModelInputs(
        batches, text.kind, text.summary, is_fixed, notes=notes, short=short, answers=answers, words=words
    )


def _generate_inputs(
    view: GraphView,
    kind: str,
    cost: float,
    count: int,
    requested: InputRequest,
    seed: int,
    start: float,
    progress: Progress,
) -> ModelInputs:
    # Whether it could be inverted takes torch, which takes seconds to import.
    hindrance = _hindrance(view, cost, count, requested) if kind == "auto" else ""
    if kind == INVERTED or (kind == "auto" and not hindrance):
        return _invert_inputs(view, cost, count, requested, seed, start, progress)
    why = "requested" if kind != "auto" else hindrance
    if requested.steps:
        raise ConfigError(f"input_steps is given, but inputs are not inverted: {why}")
    shown = kind if kind == NOISE else LEAVES
    batches = synthetic_inputs(view, samples=count, seed=seed, kind=shown, exactly=True)
    return ModelInputs(batches, shown, why, _fixed_batch(view) is not None)


def _hindrance(view: GraphView, cost: float, samples: int, requested: InputRequest) -> str:
    """Return why a network is not inverted by default; '' if inversion is possible within the time."""
    reason = obstacle(view)
    if reason:
        return f"deep inversion is not possible: {reason}"
    return too_long(samples, cost, requested, has_statistics=_has_statistics(view))


def _has_statistics(view: GraphView) -> bool:
    return any(own_statistics(view, node) is not None for node in view.nodes)


def _invert_inputs(
    view: GraphView, cost: float, samples: int, requested: InputRequest, seed: int, began: float, progress: Progress
) -> ModelInputs:
    most, settings, notes = planned_inversion(samples, cost, requested, has_statistics=_has_statistics(view))
    start = synthetic_inputs(view, samples=most, seed=seed, exactly=requested.samples is not None)
    if requested.seconds is not None and not requested.steps:
        settings = replace(settings, seconds=requested.seconds - (time.monotonic() - began))
    scales = {n: scale for n in optimised_inputs(view) if (scale := input_scale(view, n)) is not None}
    begun = [b | {n: s.standard(b[n]).astype(b[n].dtype) for n, s in scales.items()} for b in start]
    done = deep_inversion(standardise(view, scales), begun, seed=seed, settings=settings, progress=progress)
    inputs = [b | {n: s.values(b[n]).astype(b[n].dtype) for n, s in scales.items()} for b in done.inputs]
    if done.cut:
        notes += (cut_note(done, requested),)
    inverted = ModelInputs(inputs, INVERTED, "", _fixed_batch(view) is not None, done.steps_per_batch, done.cut, notes)
    if done.final.statistics is not None:
        was, is_now = done.initial.statistics, done.final.statistics
        why = f"BatchNormalization statistics off by {was:.3g}, after {done.steps} steps by {is_now:.3g}"
        return replace(inverted, reason=why)
    count = _count(start)
    rest = samples - count
    enough = rest >= (count if requested.samples is None else 1)
    leaves = synthetic_inputs(view, samples=rest, seed=seed + len(start) + 1, exactly=True) if enough else []
    aims = [*(["class scores"] if done.final.class_scores is not None else []), "even channels"]
    aim = " and ".join(aims if done.final.evenness is not None else ["class scores"])
    why = f"{count} inverted for {aim} ({done.steps} steps), {_count(leaves)} dead leaves"
    return replace(inverted, batches=inputs + leaves, reason=why)


def _fixed_batch(view: GraphView) -> int | None:
    return fixed_batch(map(view.shape, view.input_names))


def _count(batches: Batches) -> int:
    return sum(map(sample_count, batches))


def _user_inputs(
    view: GraphView, calibration: Given, scale: PixelScale | None, samples: int | None, texts: TokenSource | None
) -> ModelInputs:
    """Return the samples of a user."""
    path = text_file(calibration)
    if path is not None:
        if texts is None:
            raise ConfigError(f"'{calibration}' is a text, and the model takes no tokens: give arrays or images")
        return _text_inputs(texts, texts.read_text(path, InputRequest(samples)))
    most, limits = 0, tuple[str, ...]()
    if is_folder(calibration):  # there for being used, whatever a run costs
        most, limits = planned_images(view, samples)
    interface = None if texts is None else texts.interface
    user_samples = given_samples(
        input_infos(view), calibration, scale, most=most, requested=samples, interface=interface
    )
    ids = None if interface is None or interface.ids is None else user_samples.arrays[interface.ids.name]
    together = _BATCH if texts is None or ids is None or ids.ndim < 2 else texts.batch_size(ids.shape[1])
    limits = limits if most <= sample_count(user_samples.arrays) or samples else ()  # there are no more of them
    fixed, notes = _fixed_batch(view), (*limits, *user_samples.notes)
    if texts is None:
        seen, apart = split_samples(user_samples.arrays, fixed)
        reason = f"{user_samples.reason}; {_count(apart)} more were held out" if apart else user_samples.reason
        shown = list(in_batches(seen, fixed or together))
        return ModelInputs(shown, DATA, reason, fixed is not None, notes=notes, held_out=apart)
    batches = list(in_batches(user_samples.arrays, fixed or together))
    made = ModelInputs(batches, DATA, user_samples.reason, fixed is not None, notes=notes)
    short = None if ids is None or ids.ndim < 2 else texts.short_batch(ids)
    return replace(made, short=short, answers=texts.answers, words=None if ids is None else texts.words(ids))
