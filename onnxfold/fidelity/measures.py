"""Distances between the outputs of two models."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxfold.errors import ConfigError, VerificationError
from onnxfold.fidelity.answer_measures import MEASURES, Z95, Classes, Detections, Measure, Surprise, Tokens
from onnxfold.fidelity.answers import AnswerKind, answer_kinds
from onnxfold.fidelity.boxes import DetectionList, find_list
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.report import Fidelity, FidelityReport
from onnxfold.report.closeness import LabelFlips
from onnxfold.statistics.samples import parts

#: Numbers that are compared at a time.
_NUMBERS = 1 << 20
#: Values whose variance is a smaller part of their power are all the same but for rounding.
_LEAST_VARIANCE = 1e-9
#: Names of outputs that hold keys and values, with their rank.
_STATE, _LEAST_STATE = re.compile(r"(^|[._/])(present|past)", re.IGNORECASE), 3


@dataclass
class _Sums:
    """Sums over one output so far."""

    measure: Measure
    error: float = 0.0
    scale: float = 0.0
    undefined: int = 0
    seen: int = 0
    cosine: float = 0.0
    vectors: int = 0
    rows: int = 0
    first: Array | None = None  # the original's values in the first of them
    differs: bool = False  # whether others have other ones
    total: Array | None = None  # the sum of its values over all rows, where all have as many

    @property
    def snr_db(self) -> float:
        """Signal-to-noise ratio of values about their means over the rows; about 0 where they hardly vary at all."""
        scale = self.scale
        if self.total is not None and self.rows > 1:
            power = (scale - float(np.square(self.total).sum()) / self.rows) * self.rows / (self.rows - 1)
            scale = power if power > _LEAST_VARIANCE * scale else scale
        relative = self.error / scale if scale else self.error
        return -10 * math.log10(relative) if relative else math.inf


@dataclass
class FidelityMeter:
    """Compares outputs batch by batch, so that many samples need no memory."""

    names: Sequence[str]
    view: GraphView | None = None  # the original: it says what kinds of answers the outputs are
    samples: int = 0  # so far
    other_shapes: dict[str, None] = field(default_factory=dict)  # outputs with other shapes; they are not compared
    states: dict[str, None] = field(default_factory=dict)  # outputs that hold what was read; they are no answers
    _sums: dict[int, _Sums] = field(default_factory=dict)
    _kinds: dict[str, AnswerKind] = field(default_factory=dict)
    _list: DetectionList | None = None

    def add(
        self, reference: Sequence[Array], outputs: Sequence[Array], *,
        samples: int | None = None, following: Array | None = None,
    ) -> None:  # fmt: skip
        """Take the outputs of both models on a batch, and of a text the token that follows each position."""
        if samples is None:
            samples = len(reference[0]) if reference and reference[0].ndim else 1
        self.samples += samples
        if not self._kinds:
            shapes = {name: values.shape for name, values in zip(self.names, reference, strict=True)}
            self._kinds = answer_kinds(self.view, shapes, samples)
        listed = self._compare_list(reference, outputs, samples)
        for i, (a, b) in enumerate(zip(reference, outputs, strict=True)):
            if i in listed or a.dtype.kind not in "fiub":
                continue
            if a.ndim >= _LEAST_STATE and _STATE.search(self.names[i]):
                self.states[self.names[i]] = None
                continue
            if a.shape != b.shape:
                self.other_shapes[self.names[i]] = None
                continue
            corners = _corners(i, reference, outputs)
            read = following if following is not None and following.shape == a.shape[:-1] else None
            is_whole = a.ndim < 2 or not a.size
            rows: Iterable[Any] = [...] if is_whole else parts(len(a), max(_NUMBERS * len(a) // a.size, 1))
            for part in rows:
                boxes = tuple(values[part] for values in corners)
                with np.errstate(all="ignore"):  # what is not finite is looked for, not stumbled over
                    self._add(i, a[part], b[part], boxes, None if read is None else read[part])

    def _compare_list(self, reference: Sequence[Array], outputs: Sequence[Array], samples: int) -> set[int]:
        """Compare final detections, and return the outputs that list and count them."""
        is_new = self._list is None
        if self._list is None:
            heads = [i for i, name in enumerate(self.names) if self._kinds[name] == AnswerKind.DETECTIONS]
            self._list = find_list(reference, heads)
        if self._list is None:
            return set()
        first, *_ = parts = self._list.parts
        counts = (i for i, v in enumerate(reference) if v.dtype.kind in "iu" and v.size <= samples)
        listed = {*parts, *counts}
        for i in listed if is_new else ():  # samples before showed no list
            self._sums.pop(i, None)
            self.other_shapes.pop(self.names[i], None)
        self._kinds[self.names[first]] = AnswerKind.LISTED
        with np.errstate(all="ignore"):
            self._add(first, *self._list.pairs(reference, outputs), (), None)
        return listed

    def _add(self, i: int, a: Array, b: Array, corners: Sequence[Array], following: Array | None) -> None:
        x, y = a.astype(np.float64), b.astype(np.float64)
        name = self.names[i]
        finite = np.isfinite(x)
        known = finite & np.isfinite(y)
        lost = finite & ~known
        if lost.any():
            kind = "NaN" if np.isnan(y[lost]).any() else "infinite"
            raise VerificationError(f"output '{name}' is {kind} in {lost.sum()} places where the original's is finite")
        if i not in self._sums:
            self._sums[i] = _Sums(MEASURES[self._kinds[name]]())
        sums = self._sums[i]
        sums.seen += x.size
        sums.undefined += int(np.isnan(x).sum())
        if isinstance(sums.measure, Detections):
            sums.measure.add(x, y, corners)
        elif isinstance(sums.measure, Tokens):
            sums.measure.add(x, y, following)
        else:
            sums.measure.add(x, y)
        if not known.all():  # what is not finite on one side counts as 0 on both
            x, y = np.where(known, x, 0.0), np.where(known, y, 0.0)
        rows = (len(x), -1) if x.ndim > 1 and x.size else (1, -1)
        x, y, known = x.reshape(rows), y.reshape(rows), known.reshape(rows)  # the vectors of samples
        if sums.first is None:
            sums.first, sums.total = x[0].copy(), np.zeros(x.shape[1])
        sums.total = sums.total + x.sum(axis=0) if sums.total is not None and sums.total.size == x.shape[1] else None
        sums.differs = sums.differs or x.shape[1] != sums.first.size or bool((x != sums.first).any())
        sums.rows += len(x)
        lengths, off = _dots(x, x), y - x
        sums.scale += float(lengths.sum())
        sums.error += float(_dots(off, off).sum())
        norms = np.sqrt(lengths) * np.sqrt(_dots(y, y))
        # Two vectors of zeros are alike, and zeros are unlike anything else.
        alike = np.where(norms > 0.0, _dots(x, y) / norms, (x == y).all(axis=1))
        compared = known.any(axis=1)
        sums.cosine += float(alike[compared].sum())
        sums.vectors += int(compared.sum())

    @property
    def names_classes(self) -> bool:
        """Whether an output holds class scores."""
        return any(isinstance(sums.measure, Classes) for sums in self._sums.values())

    def see(self, reference: Sequence[Array]) -> None:
        """Take the original's outputs on samples that a fit was shown: its agreement there tells nothing of others."""
        for i, sums in self._sums.items():
            if isinstance(sums.measure, Classes):
                sums.measure.see(reference[i].astype(np.float64))

    def report(self, inputs: str) -> FidelityReport:
        """Return the fidelity of every output; `inputs` names the inputs in words."""
        outputs = []
        for i, sums in sorted(self._sums.items()):
            relative = math.sqrt(sums.error / sums.scale if sums.scale else sums.error)
            if sums.seen and sums.undefined == sums.seen:
                relative = math.nan
            values: dict[str, Any] = sums.measure.values()
            values["cosine"] = sums.cosine / sums.vectors if sums.vectors else None
            values["is_constant"] = sums.rows > 1 and not (sums.differs or math.isnan(relative))
            outputs.append(
                Fidelity(self.names[i], relative, kind=str(self._kinds[self.names[i]]), snr_db=sums.snr_db, **values)
            )
        return FidelityReport(outputs, self.samples, inputs, notes=self.notes)

    @property
    def surprise(self) -> Surprise | None:
        """The losses of both models on the tokens that follow; None where these were not known."""
        known = (sums.measure.surprise for sums in self._sums.values() if isinstance(sums.measure, Tokens))
        return next((surprise for surprise in known if surprise.tokens), None)

    @property
    def notes(self) -> list[str]:
        """Notes on values that could not be compared."""
        notes = [
            f"output '{name}' has other shapes in the two models; such values were not compared"
            for name in self.other_shapes
        ]
        if self.states:
            notes.append(f"{len(self.states)} outputs hold the past of the model, and were not compared")
        return notes + [
            f"output '{self.names[i]}' of the original is NaN in {sums.undefined:,} of {sums.seen:,} places, which "
            "are left out"
            for i, sums in sorted(self._sums.items())
            if sums.undefined
        ]


def _dots(x: Matrix, y: Matrix) -> Matrix:
    """Return the dot product of every row of two matrices; a matrix of products would be as large as they are."""
    return np.asarray(np.einsum("ij,ij->i", x, y))


def _corners(i: int, reference: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
    """Return boxes of the positions of output `i` that stand in another output, of both networks."""
    shape = reference[i].shape
    if len(shape) != 3 or shape[2] == 4:
        return ()
    pairs = zip(reference, outputs, strict=True)
    return next(((a, b) for a, b in pairs if a.shape == b.shape == (*shape[:2], 4)), ())


def fidelity(
    names: Sequence[str], reference: Sequence[Array], outputs: Sequence[Array], *, inputs: str,
    view: GraphView | None = None, samples: int | None = None,
) -> FidelityReport:  # fmt: skip
    """Compare outputs, the first list being the reference."""
    meter = FidelityMeter(names, view)
    meter.add(reference, outputs, samples=samples)
    return meter.report(inputs)


def drop_interval(lost: int, won: int, trials: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of the difference of two proportions that were measured on the same samples.

    Bonett and Price, *Adjusted Wald confidence interval for a difference of binomial proportions*, 2012.
    """
    a, b = (lost + 1) / (trials + 2), (won + 1) / (trials + 2)
    half = Z95 * math.sqrt((a + b - (a - b) ** 2) / (trials + 2))
    return max(a - b - half, -1.0), min(a - b + half, 1.0)


def label_flips(before: Array, after: Array) -> LabelFlips:
    """Return the answers that are right in one model only, and McNemar's test of them (1947), by exact binomials."""
    from scipy.special import bdtr  # takes a while to import

    lost, won = int((before & ~after).sum()), int((after & ~before).sum())
    return LabelFlips(lost, won, min(2.0 * float(bdtr(min(lost, won), lost + won, 0.5)), 1.0))


def accuracy(outputs: list[Array], labels: Array) -> float:
    """Return top-1 accuracy; see :func:`correct_answers`."""
    return float(correct_answers(outputs, labels).mean())


def correct_answers(outputs: list[Array], labels: Array) -> Array:
    """Return whether the first output that is shaped like class scores, or numbers classes, is right.

    Scores with NaN are wrong.
    """
    for values in (values for values in outputs if not _numbers_classes(values, labels)):
        if values.ndim >= 2 and len(values) == len(labels) and int(np.prod(values.shape[2:])) == 1:
            scores = values.reshape(len(values), -1)
            if labels.max(initial=0) >= scores.shape[1]:
                raise ConfigError(f"the labels go up to {labels.max()}, and the model has {scores.shape[1]} classes")
            answers = ~np.isnan(scores).any(axis=1) if scores.dtype.kind == "f" else np.ones(len(scores), bool)
            right: Array = (scores.argmax(axis=1) == labels.reshape(-1)) & answers
            return right
    for values in (values for values in outputs if _numbers_classes(values, labels)):
        return np.asarray(values.reshape(-1) == labels.reshape(-1))
    raise ConfigError("labels were given but no output has the shape (samples, classes), or numbers of classes")


def _numbers_classes(values: Array, labels: Array) -> bool:
    """Whether an output holds one integer per sample."""
    return values.dtype.kind in "iu" and values.ndim > 0 and values.size == len(values) == len(labels)
