"""Inputs to run a network on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from onnxfold.errors import ConfigError
from onnxfold.graph.run.session import count_samples, in_batches, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.input_scale import holds_images, sides_of
from onnxfold.inputs.sample_kinds import DOUBT_OF_IMAGES, DOUBT_OF_TEXT, SAMPLE_KINDS, SampleKind
from onnxfold.inputs.tokens.answers import TokenFacts
from onnxfold.inputs.walk_batches import cut_batches, stage_batches
from onnxfold.statistics.activations import Batches, StagedBatches
from onnxfold.statistics.moments import NO_DOUBT
from onnxfold.statistics.observe import FitRules

#: Tokens that show the effect of a fold.
_FRONT_TOKENS = 1_024
#: Batches of a fixed size that a network is run on once per group.
_FEW = 4


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
    tokens: TokenFacts = field(default_factory=TokenFacts)
    held_out: Batches = field(default_factory=list)  # batches of a user's samples that no fold is shown
    is_doubted: bool = False  # whether fits trust large images of a user only in part
    is_mirrored: bool = False  # whether every sample has its mirror image behind it

    def few_batches(self, samples: int) -> Batches:
        """Return so many samples for what runs the network once per group: of a language model, a few short ones.

        They are one batch; or some of a fixed size, which take longer, and of which four tell as much as eight.
        """
        if self.tokens.short is not None:
            return [self.tokens.short]
        count = samples // sample_count(self.batches[0])
        return self.batches[: min(max(count, 1), _FEW)] if self.fixed_batch else [self._first_samples(samples)]

    def _first_samples(self, samples: int) -> dict[str, Array]:
        first = self.batches[0]
        return first if self.fixed_batch else next(in_batches(first, samples))

    @property
    def are_tokens(self) -> bool:
        """Whether they are those of a language model."""
        return self.tokens.answers is not None

    @property
    def called(self) -> str:
        """Their kind in words."""
        return f"{self.kind} in doubt" if self.is_doubted else self.kind

    @property
    def continues_text(self) -> bool:
        """Whether the network continues texts, of which these are some."""
        return self.tokens.answers is not None and self.tokens.answers.continue_text

    def walked(self, view: GraphView) -> Batches:
        """Return the front, cut where a walk along the nodes of a network would hold large activations."""
        return cut_batches(view, self.front) if self._can_be_cut else self.front

    def staged(self, view: GraphView) -> Batches | StagedBatches:
        """Return all batches for such a walk: more of them, and larger ones, where activations are small."""
        return stage_batches(view, self.batches, is_fixed=self.fixed_batch) if self._are_alike else self.batches

    @property
    def _are_alike(self) -> bool:
        """Whether samples lie along axis 0 of all inputs."""
        return len({len(values) for values in self.batches[0].values() if values.ndim}) == 1 and not self.are_tokens

    @property
    def _can_be_cut(self) -> bool:
        return self._are_alike and not self.fixed_batch

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

        Covariances are shrunk for wide layers where there may be too few samples, or of too doubtful a kind.
        """
        doubt = self.facts.doubt if self.pixels >= self.facts.doubted_from else NO_DOUBT
        doubt = DOUBT_OF_TEXT if self.continues_text else DOUBT_OF_IMAGES if self.is_doubted else doubt
        return FitRules(
            matches=not self.facts.has_data_statistics,
            shrinks=self.facts.is_data or self.facts.are_tokens or doubt != NO_DOUBT,
            doubt=doubt,
            by_length=self.continues_text,
        )

    @property
    def samples(self) -> int:
        """Number of samples."""
        return count_samples(self.batches)

    @property
    def distinct(self) -> int:
        """Number of samples, without mirror images."""
        return self.samples // 2 if self.is_mirrored else self.samples

    @property
    def images(self) -> Array | None:
        """All samples of the first input with the shape of images; None if no input has it."""
        name = next((n for n, v in self.batches[0].items() if v.ndim == 4 and v.dtype.kind == "f"), None)
        return None if name is None else np.concatenate([batch[name] for batch in self.batches])

    @property
    def pixels(self) -> int:
        """Longer side of the images; 0 of other samples."""
        first = {} if self.are_tokens else self.batches[0]
        return max((max(sides_of(values.shape)) for values in first.values() if holds_images(values)), default=0)

    def renamed(self, names: Mapping[str, str]) -> "ModelInputs":
        """Return the same inputs under other names, for a model whose interface changed; those without one go."""

        def batch(values: dict[str, Array]) -> dict[str, Array]:
            return {new: array for name, array in values.items() if (new := names.get(name, name))}

        short, answers = self.tokens.short, self.tokens.answers
        if answers is not None:
            answers = replace(answers, states=tuple(new for name in answers.states if (new := names.get(name, name))))
        tokens = replace(self.tokens, answers=answers, short=None if short is None else batch(short))
        return replace(self, batches=[batch(values) for values in self.batches], tokens=tokens)

    def split(self, part: int = 4) -> tuple["ModelInputs", "ModelInputs"]:
        """Return most samples, and a part of one in four or fewer to be held out; each tells its number."""
        if self.fixed_batch and len(self.batches) < 4:
            raise ConfigError("the model's fixed batch leaves too few batches to hold some out: give more samples")
        batches = self.batches
        if len(batches) < 4:  # each is cut into four
            batches = [part for b in batches for part in in_batches(b, max(-(-sample_count(b) // 4), 1))]
        if len(batches) < 2:
            raise ConfigError("there are too few samples to hold some out: give more, or generate more")
        cut = len(batches) - max(len(batches) // part, 1)
        parts = batches[:cut], batches[cut:]
        if self.facts.is_data and not (self.fixed_batch or self.are_tokens):
            parts = self._ends_apart(part) or parts
        seen, held_out = self._part(parts[0], "fitted on"), self._part(parts[1], "held out")
        if self.tokens.short is not None:  # the front of all samples
            short = next(in_batches(self.tokens.short, seen.samples))
            seen = replace(seen, tokens=replace(self.tokens, short=short))
        return seen, held_out

    def _ends_apart(self, part: int) -> tuple[Batches, Batches] | None:
        """Return the batches without their ends, and these: a user's samples may be sorted, and batches are few."""
        seen, held_out, unit = Batches(), Batches(), 2 if self.is_mirrored else 1
        for batch in self.batches:
            apart = max(sample_count(batch) // part, 1) // unit * unit
            first, *rest = in_batches(batch, max(sample_count(batch) - apart, 1))
            seen, held_out = [*seen, first], [*held_out, *rest]
        return (seen, held_out) if held_out else None

    def _part(self, batches: Batches, use: str) -> "ModelInputs":
        return replace(self, batches=batches, reason=f"{self.reason}; {count_samples(batches)} of {self.samples} {use}")
