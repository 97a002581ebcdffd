"""Samples of a refinement, varied anew in every step.

Images are flipped, shifted and mixed (mixup, arXiv 1710.09412), so that few of them show much: the original answers
whatever they became. Generated images are mixed with others of another kind, since networks answer on real ones.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from onnxfold.graph.run.session import in_batches, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.synthetic import synthetic_inputs
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import LEAVES
from onnxfold.statistics.activations import Batches

#: Share of dead leaves among generated images of another kind, and how many there are.
_LEAVES, _PAINTED = 0.25, 256
#: Images are shifted by up to this part of their height and width.
_SHIFT = 8
#: Share of images that are mixed with another one.
_MIXED = 0.5
#: Positions of tokens per step.
_TOKENS = 512
#: Axes of caches that hold keys and values together, whose first axis is no batch.
_TOGETHER = 5


def draw_samples(view: GraphView, shown: ModelInputs, samples: int, seed: int) -> Iterator[dict[str, Array]]:
    """Yield batches without an end: of so many varied images, or of the samples as they are in a random order."""
    random = np.random.default_rng(seed)
    name = _image_input(shown)
    if not name:
        parts = split_steps(shown.batches, shown, samples)
        while True:
            yield from (parts[i] for i in random.permutation(len(parts)))
    pool = np.concatenate([batch[name] for batch in shown.batches])
    others = _leaves(view, shown, name, seed)
    while True:
        painted = round(samples * _LEAVES) if len(others) else 0
        images = pool[random.integers(len(pool), size=samples - painted)]
        if painted:
            images = np.concatenate([images, others[random.integers(len(others), size=painted)]])
        flipped = random.random(len(images)) < 0.5
        images[flipped] = images[flipped, :, :, ::-1]
        yield {name: _mix(_shift(images, random), random)}


def judge_samples(view: GraphView, held_out: ModelInputs, samples: int, seed: int, steps: int) -> Batches:
    """Return the samples of so many steps: varied images, or the first samples as they are."""
    if _image_input(held_out):
        return list(islice(draw_samples(view, held_out, samples, seed), steps))
    parts = split_steps(held_out.batches, held_out, samples)
    return parts[: steps * (2 if held_out.are_tokens else 1)]


def split_steps(batches: Batches, inputs: ModelInputs, samples: int) -> Batches:
    """Return batches of the size of a step: of so many samples or positions of tokens, or as they are."""
    parts: Batches = []
    for batch in batches:
        size = sample_count(batch)
        if not inputs.fixed_batch and all(values.ndim < _TOGETHER for values in batch.values()):
            length = max((values.shape[1] for values in batch.values() if values.ndim == 2), default=1)
            size = max(_TOKENS // length, 1) if inputs.are_tokens else samples
        parts += list(in_batches(batch, size))
    return parts


def _image_input(inputs: ModelInputs) -> str:
    """Return the input of a network that takes images and nothing else; empty if it is none."""
    first = inputs.batches[0]
    ((name, values),) = first.items() if len(first) == 1 else (("", np.empty(0)),)
    is_image = values.ndim == 4 and values.dtype.kind == "f" and min(values.shape[2:], default=0) > 2 * _SHIFT
    return name if is_image and not inputs.fixed_batch else ""


def _leaves(view: GraphView, inputs: ModelInputs, name: str, seed: int) -> Array:
    """Return images of another kind than the generated ones; none beside a user's, or beside drawn ones."""
    if inputs.facts.is_data or inputs.facts.is_drawn:
        return np.empty(0, np.float32)
    sized = view.copy()
    sized.assume({name: (_PAINTED, *inputs.batches[0][name].shape[1:])})
    batches = synthetic_inputs(sized, samples=_PAINTED, seed=seed + 1, kind=LEAVES)
    return np.concatenate([batch[name] for batch in batches])


def _shift(images: Array, random: np.random.Generator) -> Array:
    """Move every image, with what it shows mirrored at its edges."""
    height, width = images.shape[2:]
    up, left = height // _SHIFT, width // _SHIFT
    padded = np.pad(images, ((0, 0), (0, 0), (up, up), (left, left)), mode="reflect")
    tops, sides = random.integers(2 * up + 1, size=len(images)), random.integers(2 * left + 1, size=len(images))
    return np.stack([x[:, a : a + height, b : b + width] for x, a, b in zip(padded, tops, sides, strict=True)])


def _mix(images: Array, random: np.random.Generator) -> Array:
    share = np.where(random.random(len(images)) < _MIXED, random.random(len(images)), 1.0).astype(images.dtype)
    share = share[:, None, None, None]
    mixed: Array = share * images + (1 - share) * images[random.permutation(len(images))]
    return mixed
