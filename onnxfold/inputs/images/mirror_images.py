"""Mirror images beside a few images, where a network answers both alike.

There are few inverted images, and few small ones of a user, for the covariances of wide layers. A network that was
trained on images and their mirror images knows as many again, at no cost. Whether it was is measured: one that reads
text, or tells the left of a face from its right, answers mirror images in another way.
"""

import numpy as np

from onnxfold.errors import OnnxFoldError
from onnxfold.graph.files.save import to_model
from onnxfold.graph.run.session import Session, batch_of, count_samples, in_batches, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.input_scale import has_channels_last, holds_images
from onnxfold.inputs.walk_batches import cut_batches
from onnxfold.statistics.activations import Batches

#: Images whose mirror images a network is asked about.
_ASKED = 64
#: Most that answers to mirror images differ, as a part of the variance of answers. On inverted images and on data this
#: is at most .36 of twelve networks that were trained on mirror images, and .56 to 2.4 of a face mesh, a face detector
#: and a network that tells whether text is upside down.
_ALIKE = 0.5


def with_mirror_images(view: GraphView, batches: Batches, most: int) -> Batches | None:
    """Return every image with its mirror image behind it, in batches of the same size.

    None where a network does not answer alike, where inputs are no images, and where there would be more than so many.
    """
    counts = {len(values) for values in batches[0].values() if values.ndim}
    has_images = any(map(holds_images, batches[0].values()))
    if len(counts) != 1 or not has_images or 2 * count_samples(batches) > most:
        return None
    try:
        if not _difference(view, batches) <= _ALIKE:
            return None
    except OnnxFoldError:  # which a trial run says
        return None
    mirrored: Batches = []
    for batch in batches:
        both = {name: _in_pairs(values) if values.ndim else values for name, values in batch.items()}
        mirrored += in_batches(both, sample_count(batch))
    return mirrored


def _difference(view: GraphView, batches: Batches) -> float:
    """Return how far answers to mirror images are from those to the images: the most of all outputs."""
    session = Session(to_model(view))
    asked = batches[: max(_ASKED // sample_count(batches[0]), 1)]
    asked = cut_batches(view, asked) if batch_of(view) is None else asked
    answers = session.run_all(asked)
    others = session.run_all([{name: _mirrored(values) for name, values in batch.items()} for batch in asked])
    pairs = list(zip(answers, others, strict=True))
    scores = [pair for pair in pairs if pair[0].dtype.kind == "f"]
    return max((_apart(*pair) for pair in scores or pairs), default=np.inf)


def _apart(answer: Array, other: Array) -> float:
    """Return the mean squared difference of two answers over the variance of the first; maps may be mirrored, too.

    Of numbers of classes it is the share that differs, over that of two answers to unlike images.
    """
    if answer.shape != other.shape:
        return np.inf
    if answer.dtype.kind != "f":
        by_chance = float(np.mean(answer != np.roll(answer, 1, axis=0)))
        return float(np.mean(answer != other)) / by_chance if by_chance > 0.0 else np.inf
    answer, other = np.asarray(answer, np.float64), np.asarray(other, np.float64)
    variance = float(answer.var(axis=0).mean())
    apart = min(float(np.square(answer - seen).mean()) for seen in (other, _mirrored(other)))
    return apart / variance if variance > 0.0 else np.inf


def _in_pairs(values: Array) -> Array:
    return np.stack([values, _mirrored(values)], axis=1).reshape(-1, *values.shape[1:])


def _mirrored(values: Array) -> Array:
    """Return images or maps with left and right exchanged; others as they are."""
    if values.ndim != 4:
        return values
    return np.ascontiguousarray(np.flip(values, 2 if has_channels_last(values.shape) else 3))
