"""The choice of inputs to run a network on, with the reason."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.budget.costs.running import forward_cost
from onnxfold.config.pixels import PixelScale
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.files import Cache
from onnxfold.graph.run.session import batch_of, count_samples, in_batches, sample_count
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_inputs import input_infos, split_samples
from onnxfold.inputs.given_samples import Given, UserSources, given_samples, is_folder
from onnxfold.inputs.images.image_form import image_form
from onnxfold.inputs.images.input_scale import input_scale, standard_type, standardise
from onnxfold.inputs.images.mirror_images import with_mirror_images
from onnxfold.inputs.images.synthetic import SAMPLES, sample_cost, synthetic_inputs
from onnxfold.inputs.input_plan import (
    InputRequest,
    most_samples,
    planned_images,
    planned_inversion,
    planned_leaves,
    planned_samples,
    too_long,
)
from onnxfold.inputs.inversion.deep_inversion import deep_inversion, has_statistics, obstacle
from onnxfold.inputs.kept_inputs import CHECKS_OF_GENERATED, Shelf
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import DATA, EXPOSED, INVERTED, LEAVES, NOISE, SAMPLE_KINDS, WRITTEN
from onnxfold.inputs.token_inputs import TEXT, TokenSource, TokenText
from onnxfold.inputs.tokens.answers import TokenFacts
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.token_plan import planned_beside
from onnxfold.inputs.walk_batches import BATCH
from onnxfold.progress import Progress, silent
from onnxfold.statistics.activations import Batches


def model_inputs(
    view: GraphView, kind: str, sources: UserSources, requested: InputRequest, *,
    cache: Cache | None = None, progress: Progress = silent,
) -> ModelInputs:  # fmt: skip
    """Return the inputs that a network is run on."""
    interface, texts = token_interface(view), None
    if interface is not None:
        progress(f"model takes {interface}", 0, 0)
        texts = TokenSource(view, interface, sources.source, sources.tokenizer, requested.seed)
    if sources.samples is not None:
        made = _user_inputs(view, sources.samples, sources.scale, requested, texts)
        if texts is None or not sources.adds_text:
            return made
        return with_own_text(made, texts, replace(requested, samples=None, steps=()), cache, progress)
    if kind == DATA:
        raise ConfigError(
            "this method takes statistics from your data: give --calibration FILE.npz or a folder of images"
        )
    progress("generate inputs", 0, 0)
    if texts is None or kind == INVERTED:
        return _Generation(view, kind, requested, progress).kept_or_made(cache or Cache())
    # Tokens, with all other inputs: never images, whatever is requested.
    if requested.steps:
        raise ConfigError("input_steps is given, but tokens are not inverted: leave it out")
    return _text_inputs(texts, texts.make_text(requested, cache=cache, any_ids=kind == NOISE, progress=progress))


def _text_inputs(texts: TokenSource, text: TokenText) -> ModelInputs:
    batches, facts = texts.batches(text.ids), texts.facts(text.ids, text.kind)
    is_fixed, (count, length) = texts.interface.fixed_batch is not None, text.ids.shape
    how = f"{text.ids.size:,} tokens, {count} sequences of {length}; {text.reason}"
    return ModelInputs(batches, text.kind, how, is_fixed, notes=text.notes, tokens=facts)


class _Generation:
    """Inputs that are generated for a network without tokens."""

    def __init__(self, view: GraphView, kind: str, requested: InputRequest, progress: Progress) -> None:
        self.began = time.monotonic()
        self.view, self.kind, self.requested, self.progress = view, kind, requested, progress
        self.form = image_form(view)
        self.cost = forward_cost(view) or sample_cost(view)  # of a sample
        self.scales = {n: s for n in view.input_names if (s := input_scale(self.form.view, n)) is not None}
        self.network = standardise(self.form.view, self.scales)  # which takes standardised images
        self.samples, self.notes = planned_samples(view, self.cost, requested)
        self.leaves = planned_leaves(view, self.samples, self.cost, requested)
        self.inversion = planned_inversion(
            self.samples, self.cost, requested, has_statistics=has_statistics(self.network)
        )

    def kept_or_made(self, cache: Cache) -> ModelInputs:
        """Return inputs from the cache, or new ones; what limited the request is computed anew."""
        shelf = Shelf(cache, self.view, (self.kind, self.requested, self.samples, self.leaves, self.inversion))
        kept = shelf.find(input_infos(self.view), CHECKS_OF_GENERATED)
        if kept is not None:
            facts: dict[str, Any] = {n: tuple(fact) if isinstance(fact, list) else fact for n, fact in kept[1].items()}
            inputs = ModelInputs(kept[0], fixed_batch=batch_of(self.view) is not None, **facts)
        else:
            inputs = self.make()
            if not inputs.cut:
                shelf.keep(inputs.batches, {name: getattr(inputs, name) for name in CHECKS_OF_GENERATED})
        return replace(inputs, notes=self.notes + inputs.notes)

    def make(self) -> ModelInputs:
        """Return new inputs."""
        why = "requested"
        if self.kind == "auto":  # takes torch, which takes seconds to import
            reason = obstacle(self.network)
            too_slow = too_long(self.inversion[0], self.cost, self.requested)
            why = f"deep inversion is not possible: {reason}" if reason else too_slow
        if self.kind == INVERTED or not why:
            try:
                return self._invert()
            except UnsupportedModelError as error:  # such as scores that turn out not to be any
                if self.kind == INVERTED:
                    raise
                why = str(error)
        if self.requested.steps:
            raise ConfigError(f"input_steps is given, but inputs are not inverted: {why}")
        shown = NOISE if self.kind == NOISE else LEAVES
        kind = SAMPLE_KINDS[shown].drawn_as
        batches = synthetic_inputs(self.view, samples=self.leaves, seed=self.requested.seed, kind=kind, exactly=True)
        return ModelInputs(batches, shown, why, batch_of(self.view) is not None)

    def _invert(self) -> ModelInputs:
        view, requested, seed = self.form.view, self.requested, self.requested.seed
        most, settings, notes = self.inversion
        start = synthetic_inputs(view, samples=most, seed=seed, kind=EXPOSED, exactly=requested.samples is not None)
        if requested.seconds is not None and not requested.steps:
            settings = replace(settings, seconds=requested.seconds - (time.monotonic() - self.began))
        types = {n: standard_type(view.elem_type(n)) for n in self.scales}
        begun = [b | {n: s.standard(b[n]).astype(types[n]) for n, s in self.scales.items()} for b in start]
        done = deep_inversion(self.network, begun, seed=seed, settings=settings, progress=self.progress)
        inputs = [b | {n: s.values(b[n], start[0][n].dtype) for n, s in self.scales.items()} for b in done.inputs]
        if done.cut:
            steps = ",".join(map(str, done.steps_per_batch))
            notes += (
                f"--input-seconds {requested.limit():g} ended the inversion after {done.steps} of "
                f"{done.planned * len(done.steps_per_batch)} steps: these inputs depend on the speed of this machine; "
                f"--input-steps {steps} makes them again",
            )
        mirrored = _mirror_images(view, inputs, requested)
        inputs = mirrored or inputs
        if "statistics" in done.final:
            was, is_now = done.initial["statistics"], done.final["statistics"]
            why = f"BatchNormalization statistics off by {was:.3g}, after {done.steps} steps by {is_now:.3g}"
        else:
            count = count_samples(start)
            rest = self.samples - count
            enough = rest >= (count if requested.samples is None else 1)
            apart = seed + len(start) + 1
            leaves = synthetic_inputs(view, samples=rest, seed=apart, kind=EXPOSED, exactly=True) if enough else []
            aims = {"class_scores": "class scores", "evenness": "even channels"}
            aim = " and ".join(words for term, words in aims.items() if term in done.final)
            why = f"{count} inverted for {aim} ({done.steps} steps), {count_samples(leaves)} dead leaves"
            inputs = [*inputs, *leaves]
        why = f"{why}; with the mirror images of inverted ones, answered alike" if mirrored else why
        return ModelInputs(
            self.form.inputs(inputs), INVERTED, why, batch_of(view) is not None, done.steps_per_batch, done.cut, notes,
            is_mirrored=mirrored is not None and len(mirrored) == len(inputs),
        )  # fmt: skip


def _mirror_images(view: GraphView, batches: Batches, requested: InputRequest) -> Batches | None:
    """Return images with their mirror images, where these help; a number of samples that is asked for is exact."""
    if requested.samples is not None:
        return None
    return with_mirror_images(view, batches, min(SAMPLES, most_samples(view)))


def _user_inputs(
    view: GraphView, calibration: Given, scale: PixelScale | None, requested: InputRequest, texts: TokenSource | None
) -> ModelInputs:
    samples = requested.samples
    if not isinstance(calibration, Mapping) and Path(calibration).suffix.lower() == TEXT:
        if texts is None:
            raise ConfigError(f"'{calibration}' is a text, and the model takes no tokens: give arrays or images")
        return _text_inputs(texts, texts.read_text(Path(calibration), InputRequest(samples)))
    # Images of a folder are there for being used, whatever a run costs.
    most, limits = planned_images(view, samples) if is_folder(calibration) else (0, ())
    interface = None if texts is None else texts.interface
    user_samples = given_samples(
        input_infos(view), calibration, scale, most=most, requested=samples, interface=interface
    )
    ids = None if interface is None or interface.ids is None else user_samples.arrays[interface.ids.name]
    together = BATCH if texts is None or ids is None or ids.ndim < 2 else texts.batch_size(ids.shape[1])
    limits = limits if most <= sample_count(user_samples.arrays) or samples else ()  # there are no more of them
    fixed, notes = batch_of(view), (*limits, *user_samples.notes)
    seen, apart = split_samples(user_samples.arrays, fixed) if texts is None else (user_samples.arrays, [])
    reason = f"{user_samples.reason}; {count_samples(apart)} more were held out" if apart else user_samples.reason
    facts = TokenFacts() if texts is None else texts.facts(ids)
    batches = list(in_batches(seen, fixed or together))
    made = ModelInputs(batches, DATA, reason, fixed is not None, notes=notes, tokens=facts, held_out=apart)
    # Larger ones are trusted in part only, and their mirror images add nothing then.
    is_small = texts is None and made.pixels < SAMPLE_KINDS[LEAVES].doubted_from
    form = image_form(view)
    mirrored = _mirror_images(form.view, form.images(batches), requested) if is_small else None
    if mirrored is None:
        return made
    reason = f"{reason}; with their mirror images, answered alike"
    return replace(made, batches=form.inputs(mirrored), reason=reason, is_mirrored=True)


def with_own_text(
    user_inputs: ModelInputs, texts: TokenSource, requested: InputRequest, cache: Cache | None, progress: Progress
) -> ModelInputs:
    """Return a user's texts, and between them what the model writes; as they are where it cannot write.

    A few thousand words have few subjects: of other texts more is lost than where nothing is shown. A quarter of the
    whole is therefore its own text, and more of it where little is given.
    """
    name = None if texts.interface.ids is None else texts.interface.ids.name
    arrays = [batch[name] for batch in user_inputs.batches if name in batch]
    if name is None or not user_inputs.continues_text or any(ids.ndim != 2 for ids in arrays):
        return user_inputs
    ids = np.concatenate(arrays)
    plan = planned_beside(texts.view, texts.interface, ids.shape)
    if plan is None:
        return user_inputs
    text = texts.text(plan, requested, cache=cache, progress=progress)
    if text.kind != WRITTEN:
        return user_inputs
    batches = spread(user_inputs.batches, texts.batches(text.ids))
    shortest = min(ids.shape[1], text.ids.shape[1])
    fronts = np.concatenate([batch[name][:, :shortest] for batch in batches])
    seen = np.concatenate([ids.ravel(), text.ids.ravel()])
    return replace(
        user_inputs,
        batches=batches,
        reason=f"{user_inputs.reason}; {text.ids.size:,} tokens between them {text.reason}",
        tokens=replace(user_inputs.tokens, short=texts.short_batch(fronts), words=texts.words(seen)),
    )


def spread(batches: Batches, others: Batches) -> Batches:
    """Return batches with others evenly between them."""
    places = [(i + 0.5) / len(part) for part in (batches, others) for i in range(len(part))]
    together = [*batches, *others]
    return [together[i] for i in np.argsort(places, kind="stable")]
