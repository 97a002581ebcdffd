"""Boxes of detectors: decoded from all positions or read from lists of final detections, and matched."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onnxfold.graph.tensors import Array

#: Detections have a score above the first, and match where boxes overlap by the second.
SCORE, _OVERLAP = 0.3, 0.5
#: Boxes of one sample that are compared, at most.
_BOXES = 100
#: Corners are in order in as many boxes; others hold centre and size.
_ORDERED = 0.9
#: The first or last class is the background if it has the highest score at so many positions.
_BACKGROUND = 0.9
#: Columns of lists with the two corners, the score, the class and, where it is stated, the sample.
_COLUMNS = (
    (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 5, 4), (2, 3, 4, 5, 1, 0),  # YOLOv10, torchvision, PaddleDetection
    (1, 2, 3, 4, 6, 5, 0), (3, 4, 5, 6, 2, 1, 0),  # YOLOv7, SSD
)  # fmt: skip


class Boxes(NamedTuple):
    """Boxes of one sample: two corners, shape (boxes, 4), scores and classes, the best first."""

    corners: Array
    scores: Array
    classes: Array

    @property
    def table(self) -> Array:
        """Corners and scores, shape (boxes, 5)."""
        return np.column_stack([self.corners, self.scores])


@dataclass(frozen=True)
class DetectionList:
    """The outputs of a network that list final detections: a table, or boxes, scores and classes in any order."""

    parts: tuple[int, ...]  # numbers of the outputs; the first stands for all
    columns: tuple[int, ...]  # of the parts side by side, as in `_COLUMNS`

    def pairs(self, reference: Sequence[Array], outputs: Sequence[Array]) -> tuple[Array, Array]:
        """Return boxes and scores of two networks, shape (pairs, 5), with zeros where one of them has no match."""
        rows = [(np.empty((0, 5)), np.empty((0, 5)))]
        both = [self._samples(values) for values in (reference, outputs)]
        for sample in sorted(both[0].keys() | both[1].keys()):
            mine, other = (_best(side.get(sample, np.empty((0, 6)))) for side in both)
            a, b = mine.table, other.table
            matched = match_boxes(mine, other)
            i, j = [i for i, _ in matched], [j for _, j in matched]
            alone = np.delete(a, i, axis=0), np.delete(b, j, axis=0)
            rows += [(a[i], b[j]), (alone[0], 0 * alone[0]), (0 * alone[1], alone[1])]
        first, second = (np.concatenate(side) for side in zip(*rows, strict=True))
        return first, second

    def _samples(self, outputs: Sequence[Array]) -> dict[int, Array]:
        """Return the rows of every sample, in the order of columns."""
        table = _table(outputs, self.parts)[..., self.columns]
        rows = table.reshape(-1, len(self.columns))
        per_sample = len(rows) if table.ndim == 2 else table.shape[-2]
        samples = rows[:, 6] if len(self.columns) == 7 else np.arange(len(rows)) // max(per_sample, 1)
        return {int(sample): rows[samples == sample] for sample in np.unique(samples)}


def find_list(outputs: Sequence[Array], heads: Sequence[int]) -> DetectionList | None:
    """Return where final detections stand, of outputs that may hold boxes; None where no row shows it."""
    for i in heads:
        beside = [j for j, values in enumerate(outputs) if values.shape == outputs[i].shape[:-1]]
        parts = (i, *beside) if outputs[i].shape[-1] == 4 and len(beside) == 2 else (i,)
        table = _table(outputs, parts)
        for columns in _COLUMNS:
            if table.shape[-1] == len(columns) and _is_list(table[..., columns].reshape(-1, len(columns))):
                return DetectionList(parts, columns)
    return None


def _table(outputs: Sequence[Array], parts: Sequence[int]) -> Array:
    first, *others = (outputs[i].astype(np.float64) for i in parts)
    return np.concatenate([first, *(values[..., None] for values in others)], axis=-1)


def _is_list(rows: Array) -> bool:
    """Whether rows hold ordered corners, scores from 0 to 1, and whole numbers; rows without a score fill a list."""
    rows = rows[rows[:, 4] > 0]
    numbers = rows[:, 5:]
    are_whole = bool((numbers == np.floor(np.abs(numbers))).all())
    are_scores = bool((rows[:, 4] <= 1).all() and (rows[:, 4] < 1).any())
    return are_whole and are_scores and bool((rows[:, 2:4] >= rows[:, :2]).all())


def _best(rows: Array) -> Boxes:
    """Return the boxes of a sample above the least score."""
    order = np.argsort(-rows[:, 4], kind="stable")[:_BOXES]
    rows = rows[order[rows[order, 4] > SCORE]]
    return Boxes(rows[:, :4], rows[:, 4], rows[:, 5])


def decode_boxes(
    values: Array, reference: Array, boxes: tuple[Array, Array] | None, *, has_object: bool
) -> list[Boxes]:
    """Return boxes as corners, scores and classes of every sample, after suppression; nothing of unknown layouts.

    Known are centre and size, then scores, in columns (YOLOv8); the same in rows, with a score of objects before those
    of classes (YOLOv5); and, beside boxes in another output, of this network and of the original, scores from 0 to 1
    (SSD), or logits where the boxes are parts of the image (DETR).
    """
    if values.ndim != 3 or not values.size:
        return []
    if boxes is None:
        if values.shape[2] < 5 + has_object or reference[..., 2:4].max() <= 1.0:
            return []
        corners, scores, reference = _corners(values), values[..., 4:], reference[..., 4:]
    else:
        corners, scores = boxes[0], values
        if (boxes[1][..., 2:] >= boxes[1][..., :2]).all(axis=-1).mean() < _ORDERED:
            corners = _corners(corners)
        if reference.min() < 0 <= boxes[1].min() and boxes[1].max() <= 1:
            scores, reference = (1 / (1 + np.exp(-logits)) for logits in (scores, reference))
    if reference.size == 0 or reference.min() < 0 or reference.max() > 1:
        return []
    if boxes is None:
        scores = scores[..., 1:] * scores[..., :1] if has_object else scores
    elif scores.shape[2] > 1:
        best = reference.argmax(axis=2)
        background = [c for c in (0, scores.shape[2] - 1) if (best == c).mean() > _BACKGROUND]
        scores = np.delete(scores, background, axis=2)
    return [_suppress_overlaps(*sample) for sample in zip(corners, scores, strict=True)]


def _corners(boxes: Array) -> Array:
    centre, half = boxes[..., :2], np.abs(boxes[..., 2:4]) / 2
    return np.concatenate([centre - half, centre + half], axis=-1)


def _suppress_overlaps(boxes: Array, scores: Array) -> Boxes:
    """Return boxes, scores and classes above the least score, the best of those of one class that overlap."""
    best, classes = scores.max(axis=1), scores.argmax(axis=1)
    order = np.flatnonzero(best > SCORE)
    order = order[np.argsort(-best[order], kind="stable")][: 5 * _BOXES]
    kept: list[int] = []
    while order.size and len(kept) < _BOXES:
        first, order = int(order[0]), order[1:]
        kept.append(first)
        same = classes[order] == classes[first]
        order = order[~(same & (_overlaps(boxes[first], boxes[order]) > _OVERLAP))]
    return Boxes(boxes[kept], best[kept], classes[kept])


def _overlaps(box: Array, boxes: Array) -> Array:
    """Return intersection over union of a box with others."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    both = np.prod(np.maximum(sides, 0.0), axis=1)
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) + np.prod(box[2:] - box[:2])
    overlap: Array = both / np.maximum(areas - both, 1e-12)
    return overlap


def match_boxes(mine: Boxes, other: Boxes) -> list[tuple[int, int]]:
    """Return the boxes that match one of the same class, each once, with the number of that one."""
    free = np.ones(len(other.scores), bool)
    matched = []
    for i, (box, kind) in enumerate(zip(mine.corners, mine.classes, strict=True)):
        overlaps = np.where(free & (other.classes == kind), _overlaps(box, other.corners), 0.0)
        if overlaps.size and overlaps.max() >= _OVERLAP:
            j = int(overlaps.argmax())
            free[j] = False
            matched.append((i, j))
    return matched
