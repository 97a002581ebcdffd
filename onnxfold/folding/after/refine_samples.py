"""Samples of a refinement: more of them than a fold takes, varied anew in every step.

A fold takes covariances from its inputs, a refinement learns single samples.
Images are flipped, shifted and mixed (mixup, arXiv 1710.09412), so that few of them show much: the original answers
whatever they became. Inverted images are mixed with others of another kind, since networks answer on real ones. Inputs
that are drawn cost little: new ones take the place of the oldest in every step.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

import numpy as np

from onnxfold.config import NO_REFINEMENT, FoldConfig
from onnxfold.folding.inputs.choose_inputs import inputs_by_seed
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.run.session import in_batches, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.image_form import image_form
from onnxfold.inputs.images.input_scale import has_channels_last, holds_images, sides_of
from onnxfold.inputs.images.synthetic import synthetic_inputs
from onnxfold.inputs.input_plan import INVERTED as FEW_INVERTED
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import INVERTED, LEAVES
from onnxfold.inputs.tokens.language_model import ANCESTRAL
from onnxfold.progress import Progress
from onnxfold.statistics.activations import Batches

#: Inverted images that a refinement is shown.
_SHOWN = 512
#: How many times as much as for the fold a language model writes, for which that takes two minutes at most.
_TEXTS = 7
#: Share of dead leaves beside inverted images, and how many there are.
_LEAVES, _PAINTED = 0.25, 256
#: Drawn images that are at hand, how many are drawn together, with a common mean and deviation, and how many times as
#: many as new ones a step is shown.
_AT_HAND, _DRAWN, _TURNS = 256, 32, 4
#: Between the seeds of batches, each of which has several inputs.
_APART = 1_000
#: Images are shifted by up to this part of their height and width.
_SHIFT = 8
#: Share of images that are mixed with another one.
_MIXED = 0.5
#: One in four inputs is held out, of long texts one in ten; and how many times as many steps' worth of text is judged.
_MOST_HELD_OUT, _LEAST_HELD_OUT, _OF_TEXT = 4, 10, 2
#: Positions of tokens per step.
TOKENS_PER_STEP = 512
#: Axes of caches that hold keys and values together, whose first axis is no batch.
_TOGETHER = 5


def with_more_samples(
    original: ModelLike, inputs: ModelInputs, tokens: int, config: FoldConfig, progress: Progress
) -> ModelInputs:
    """Return the inputs of a fold and, behind them, more of their kind: inverted images, or texts of so many tokens.

    Texts that are shown again are learned by heart (SmolLM2 at 20 % lost .07 there in place of .24), and the fold's own
    ones were fitted. So there are at least as many others, ancestral: drawn words taught nothing about other text.
    """
    if config.samples is not None:
        return inputs
    request, turns = replace(config, refine=NO_REFINEMENT, refine_steps=None, torch_device="auto"), 1
    if inputs.facts.are_tokens:
        lacking = max(-(-tokens // count_tokens(inputs)) - 1, 1)
        turns = lacking if inputs.facts.are_words_alone else min(lacking, _TEXTS)
    elif inputs.facts.is_inverted and FEW_INVERTED <= inputs.distinct < _SHOWN:
        request = replace(request, inputs=INVERTED, samples=_SHOWN - inputs.distinct)
    else:
        return inputs
    seeds = range(config.seed + 1, config.seed + 1 + turns)
    made = [chosen.inputs for chosen in inputs_by_seed(original, request, seeds, progress, ANCESTRAL)]
    alike = [more for more in made if more is not None and more.kind == inputs.kind and not more.cut]
    return replace(inputs, batches=[batch for some in (inputs, *alike) for batch in some.batches])


def draw_samples(view: GraphView, shown: ModelInputs, samples: int, seed: int) -> Iterator[dict[str, Array]]:
    """Yield batches without an end: of so many varied images, or of the samples as they are in a random order."""
    form = image_form(view)
    if form.shapes:
        images = replace(shown, batches=form.images(shown.batches))
        yield from (form.inputs([batch])[0] for batch in draw_samples(form.view, images, samples, seed))
        return
    random = np.random.default_rng(seed)
    name = _image_input(shown)
    if shown.facts.is_drawn:
        anew = _draw_anew(view, shown, _DRAWN if name else samples, seed + 1, shown.facts.drawn_as)
        batches = _renew_images(shown, name, samples, anew, random) if name else anew
    elif name:
        batches = _pick_images(view, shown, name, samples, seed, random)
    else:
        batches = _in_turn(split_steps(shown.batches, shown, samples), random)
    yield from (_vary(batch, name, random) for batch in batches) if name else batches


def judge_samples(view: GraphView, held_out: ModelInputs, samples: int, seed: int, steps: int) -> Batches:
    """Return the samples of so many steps: varied images, or the first samples as they are."""
    if _image_input(held_out) or image_form(view).shapes:
        return list(islice(draw_samples(view, held_out, samples, seed), steps))
    parts = split_steps(held_out.batches, held_out, samples)
    return parts[: steps * (_OF_TEXT if held_out.are_tokens else 1)]


def held_out_part(inputs: ModelInputs, steps: int) -> int:
    """Return one in how many inputs is held out: four, or of a long text so many that these steps are left to judge."""
    enough = count_tokens(inputs) // (_OF_TEXT * steps * TOKENS_PER_STEP) if inputs.are_tokens else 0
    return min(max(enough, _MOST_HELD_OUT), _LEAST_HELD_OUT)


def count_tokens(inputs: ModelInputs) -> int:
    """Return the number of positions of all texts."""
    return sum(sample_count(batch) * _length(batch) for batch in inputs.batches)


def split_steps(batches: Batches, inputs: ModelInputs, samples: int) -> Batches:
    """Return batches of the size of a step: of so many samples or positions of tokens, or as they are."""
    parts: Batches = []
    for batch in batches:
        size = sample_count(batch)
        if not inputs.fixed_batch and all(values.ndim < _TOGETHER for values in batch.values()):
            size = max(TOKENS_PER_STEP // _length(batch), 1) if inputs.are_tokens else samples
        parts += list(in_batches(batch, size))
    return parts


def _length(batch: dict[str, Array]) -> int:
    """Return the number of positions of a text; 1 of other samples."""
    return max((values.shape[1] for values in batch.values() if values.ndim == 2), default=1)


def _image_input(inputs: ModelInputs) -> str:
    """Return the input of a network that takes images and nothing else; empty if it is none."""
    first = inputs.batches[0]
    ((name, values),) = first.items() if len(first) == 1 else (("", np.empty(0)),)
    is_image = holds_images(values) and min(sides_of(values.shape)) > 2 * _SHIFT
    return name if is_image and not inputs.fixed_batch else ""


def _in_turn(parts: Batches, random: np.random.Generator) -> Iterator[dict[str, Array]]:
    """Yield batches in a random order, each before one is again."""
    while True:
        yield from (parts[i] for i in random.permutation(len(parts)))


def _pick_images(
    view: GraphView, shown: ModelInputs, name: str, samples: int, seed: int, random: np.random.Generator
) -> Iterator[dict[str, Array]]:
    """Yield images that are picked at random; beside inverted ones stand some of another kind."""
    pool = np.concatenate([batch[name] for batch in shown.batches])
    painted = 0 if shown.facts.is_data else round(samples * _LEAVES)
    others = next(_draw_anew(view, shown, _PAINTED, seed + 1, LEAVES))[name] if painted else pool
    while True:
        images = pool[random.integers(len(pool), size=samples - painted)]
        yield {name: np.concatenate([images, others[random.integers(len(others), size=painted)]])}


def _renew_images(
    shown: ModelInputs, name: str, samples: int, anew: Iterator[dict[str, Array]], random: np.random.Generator
) -> Iterator[dict[str, Array]]:
    """Yield images that are picked at random of those at hand, of which the oldest make way for new ones."""
    at_hand = deque((image for batch in shown.batches for image in batch[name]), maxlen=_AT_HAND)
    new = (image for batch in anew for image in batch[name])
    while True:
        at_hand.extend(islice(new, max(samples // _TURNS, 1)))
        yield {name: np.stack([at_hand[i] for i in random.integers(len(at_hand), size=samples)])}


def _draw_anew(view: GraphView, like: ModelInputs, samples: int, seed: int, kind: str) -> Iterator[dict[str, Array]]:
    """Yield batches of so many drawn samples, of the sizes that others have."""
    first = like.batches[0]
    size = sample_count(first) if like.fixed_batch else samples
    sizes = {name: size if len(x) == sample_count(first) else len(x) for name, x in first.items() if x.ndim}
    sized = view.copy()
    sized.assume({name: (n, *first[name].shape[1:]) for name, n in sizes.items()})
    for i in count():
        yield from synthetic_inputs(sized, samples=size, seed=seed + _APART * i, kind=kind)


def _vary(batch: dict[str, Array], name: str, random: np.random.Generator) -> dict[str, Array]:
    """Return a batch with images that are flipped, shifted and mixed."""
    last = has_channels_last(batch[name].shape)
    images = np.moveaxis(batch[name], -1, 1) if last else batch[name]
    flipped = random.random(len(images)) < 0.5
    images[flipped] = images[flipped, :, :, ::-1]
    varied = _mix(_shift(images, random), random)
    if varied.dtype != images.dtype:  # of pixels that are bytes
        varied = np.rint(varied).astype(images.dtype)
    return batch | {name: np.ascontiguousarray(np.moveaxis(varied, 1, -1)) if last else varied}


def _shift(images: Array, random: np.random.Generator) -> Array:
    """Move every image, with what it shows mirrored at its edges."""
    height, width = images.shape[2:]
    up, left = height // _SHIFT, width // _SHIFT
    padded = np.pad(images, ((0, 0), (0, 0), (up, up), (left, left)), mode="reflect")
    tops, sides = random.integers(2 * up + 1, size=len(images)), random.integers(2 * left + 1, size=len(images))
    return np.stack([x[:, a : a + height, b : b + width] for x, a, b in zip(padded, tops, sides, strict=True)])


def _mix(images: Array, random: np.random.Generator) -> Array:
    share = np.where(random.random(len(images)) < _MIXED, random.random(len(images)), 1.0)
    share = share.astype(images.dtype if images.dtype.kind == "f" else np.float32)
    share = share[:, None, None, None]
    mixed: Array = share * images + (1 - share) * images[random.permutation(len(images))]
    return mixed
