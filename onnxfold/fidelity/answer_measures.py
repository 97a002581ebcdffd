"""A measure for each kind of answer, taken batch by batch: how much of the original's answers a network keeps."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfold.fidelity.answers import LINE, AnswerKind
from onnxfold.fidelity.boxes import SCORE, decode_boxes, match_boxes
from onnxfold.graph.tensors import Array
from onnxfold.inputs.tokens.answers import log_softmax

#: The quantile of the normal distribution that leaves 2.5 % above it.
Z95 = 1.959963984540054
#: Detections that a share of them needs.
_FEWEST = 10
#: Rows whose probabilities are computed at a time; the least that a probability counts as: an int8 model states zeros.
_ROWS, _LEAST_PROBABILITY = 256, 1e-7
#: Embeddings that are kept for a search of neighbours, at most and at least.
_MOST_VECTORS, _LEAST_VECTORS = 512, 16
#: Channels that are named, worst first.
_WORST = 5
#: What a standard deviation of sureness adds to the logit of an agreement; 1 to 3 hold as well on networks left out.
_PER_DEVIATION = 2.0
#: Samples that the agreement on a class needs; quantiles of a divergence.
ENOUGH, _QUANTILES = 20, (0.5, 0.99, 1.0)


class Measure:
    """A measure of one output; this one of nothing but the error of all values, which every output has."""

    def add(self, x: Array, y: Array) -> None:
        """Take values of the original and of the other network, in float64."""

    def values(self) -> dict[str, Any]:
        """Return the measured values, named after the fields of :class:`onnxfold.report.Fidelity`."""
        return {}


@dataclass
class Surprise:
    """Negative logarithms of the probabilities that two networks give to what follows, added up."""

    tokens: int = 0
    totals: tuple[float, float] = (0.0, 0.0)
    _squares: float = 0.0  # of the differences

    def add(self, p: Array, q: Array, following: Array) -> None:
        """Take logarithms of probabilities of both, shape (rows, tokens), and what follows; -1 where nothing counts."""
        rows = np.flatnonzero(following >= 0)
        a, b = -p[rows, following[rows]], -q[rows, following[rows]]
        self.tokens += len(rows)
        self.totals = self.totals[0] + float(a.sum()), self.totals[1] + float(b.sum())
        self._squares += float(np.square(b - a).sum())

    @property
    def perplexities(self) -> tuple[float, float]:
        """Exp of both means; infinite where that is too large for a number."""
        with np.errstate(over="ignore"):
            a, b = np.exp(np.array(self.totals) / self.tokens).tolist()
        return a, b

    @property
    def ratio_error(self) -> float:
        """Standard error of the ratio of the perplexities, from the differences token by token."""
        mean = (self.totals[1] - self.totals[0]) / self.tokens
        variance = max(self._squares / self.tokens - mean**2, 0.0) / max(self.tokens - 1, 1)
        return float(np.exp(mean)) * math.sqrt(variance)


class Agreement(Measure):
    """How often the largest score is that of the same class; of class scores also the answers that change."""

    def __init__(self) -> None:
        self.agree = self.rows = self._classes = 0
        self._named: Counter[int] = Counter()
        self._kept: Counter[int] = Counter()
        self._named_after: Counter[int] = Counter()
        self._divergences: list[Array] = []
        self.surprise = Surprise()

    def add(self, x: Array, y: Array, following: Array | None = None) -> None:
        """Take scores, one row or one vector of them per answer; and the tokens that follow."""
        x, y = _rows(x), _rows(y)
        answers = ~(np.isnan(x) | np.isnan(y)).any(axis=1)  # the largest of numbers and NaN is no answer
        if not answers.all():  # scores of words take much memory
            x, y = x[answers], y[answers]
            following = None if following is None else following[answers]
        self._judge(x, y)
        self._classes = x.shape[1]
        for start in range(0, len(x), _ROWS):
            p, q = _log_shares(x[start : start + _ROWS]), _log_shares(y[start : start + _ROWS])
            share = np.exp(p)
            divergences = np.where(share > 0.0, share * (p - q), 0.0).sum(axis=1)
            self._divergences.append(np.maximum(divergences, 0.0).astype(np.float32))  # rounding
            if following is not None:
                self.surprise.add(p, q, following[start : start + _ROWS])

    def _judge(self, x: Array, y: Array) -> Array:
        """Count answers by their scores, which are numbers; return which of them are kept."""
        return self._count(x.argmax(axis=1), y.argmax(axis=1))

    def _count(self, before: Array, after: Array) -> Array:
        kept: Array = before == after
        self.rows += len(before)
        self.agree += int(kept.sum())
        self._named.update(before.tolist())
        self._kept.update(before[kept].tolist())
        self._named_after.update(after.tolist())
        return kept

    def values(self) -> dict[str, Any]:
        """Return the agreement with its interval; nothing without answers."""
        if not self.rows:
            return {}
        frequent, most = self._named.most_common(1)[0]
        rare, losses = self.rows - most, self._divergences
        return {
            "top1_agreement": self.agree / self.rows,
            "top1_interval": wilson_interval(self.agree, self.rows),
            "top1_samples": self.rows,
            "top1_variety": variety(self._named, self._classes),
            "chance_agreement": sum(n * self._named_after[c] for c, n in self._named.items()) / self.rows**2,
            "most_frequent": most / self.rows,
            "rare_agreement": (self.agree - self._kept[frequent]) / rare if ENOUGH <= rare < most else None,
            "flips": self.rows - self.agree,
            "kl_divergence": float(np.concatenate(losses).mean(dtype=np.float64)) if losses else None,
            "class_agreement": tuple((c, self._kept[c], n) for c, n in sorted(self._named.items()) if n >= ENOUGH),
        }


class Classes(Agreement):
    """The agreement also as it would be among samples whose answers are as sure as those of all that were given."""

    def __init__(self) -> None:
        super().__init__()
        self._judged: list[tuple[Array, Array]] = []  # margins of the original's answers, and which are kept
        self._shown: list[Array] = []

    def _judge(self, x: Array, y: Array) -> Array:
        kept = super()._judge(x, y)
        self._judged.append((_margins(x), kept))
        return kept

    def see(self, x: Array) -> None:
        """Take the original's scores of samples that a fit was shown."""
        margins = _margins(x)
        self._shown.append(margins[~np.isnan(margins)])

    def values(self) -> dict[str, Any]:
        """Return the agreement, and the expected one where other samples are known."""
        values = super().values()
        if values and any(map(len, self._shown)):
            margins, kept = (np.concatenate(parts) for parts in zip(*self._judged, strict=True))
            values["expected_agreement"] = expected_agreement(kept, margins, np.concatenate(self._shown))
        return values


def expected_agreement(kept: Array, margins: Array, others: Array) -> float:
    """Return the share of answers that would be kept among all samples, by those of which it is known.

    A fold loses answers that are unsure, and the samples that were held out may be surer than others. So the logit of
    the share is taken to rise with the root of a margin's rank among all; its constant is fitted, its slope is not
    (Lehtonen and Veijanen, *Logistic generalized regression estimators*, 1998).
    """
    from scipy.optimize import brentq  # takes a while to import, as do the next two
    from scipy.special import expit, logit
    from scipy.stats import rankdata

    share, ranks = float(kept.mean()), np.sqrt(rankdata(np.concatenate([margins, others])))
    if share in (0.0, 1.0) or not ranks.std():
        return share
    sure = _PER_DEVIATION * (ranks - ranks.mean()) / ranks.std()
    bounds = logit(share) - sure.max(), logit(share) - sure.min()
    constant = brentq(lambda level: float(expit(level + sure[: len(kept)]).mean()) - share, *bounds)
    return float(expit(constant + sure).mean())


class Tokens(Agreement):
    """How often the same token is the likeliest, the divergence of distributions, and the loss on what follows."""

    def add(self, x: Array, y: Array, following: Array | None = None) -> None:
        """Take logits or probabilities over the last axis; and the token that follows each position, -1 for none."""
        rows = None if following is None else following.reshape(-1)
        super().add(x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), rows)

    def values(self) -> dict[str, Any]:
        """Return the agreement, and quantiles of the divergence: the median, 99 %, and the maximum."""
        values = super().values()
        if not values:
            return {}
        quantiles = np.quantile(np.concatenate(self._divergences), _QUANTILES)
        return values | {"class_agreement": (), "kl_quantiles": tuple(quantiles.tolist())}


class Numbered(Agreement):
    """How often the number of the same class is given, by a network that gives no scores; of maps, the mean IoU."""

    _are_maps = False

    def add(self, x: Array, y: Array, following: Array | None = None) -> None:
        """Take numbers of classes, of any shape."""
        self._are_maps = min(x.shape[-2:], default=0) > 1 and x.ndim > LINE
        self._count(x.ravel(), y.ravel())
        self._classes = len(self._named)

    def values(self) -> dict[str, Any]:
        """Return the agreement, and of maps the mean over all classes of intersection over union."""
        values = super().values() | {"class_agreement": ()}
        if not self.rows or not self._are_maps:
            return values
        either = {c: self._named[c] + self._named_after[c] - self._kept[c] for c in self._named | self._named_after}
        return values | {"mean_iou": math.fsum(self._kept[c] / count for c, count in either.items()) / len(either)}


class Dense(Measure):
    """How many positions keep their class, and the mean over classes of intersection over union."""

    def __init__(self) -> None:
        self._confusion: Array = np.zeros((2, 2))  # positions by the class in the original, and in the other network

    def add(self, x: Array, y: Array) -> None:
        """Take maps with classes on the second or on the last axis, the shorter; one channel is a mask."""
        axis = 1 if x.shape[1] <= x.shape[-1] else x.ndim - 1
        classes = max(x.shape[axis], 2)
        a, b = (v > 0.5 if v.shape[axis] == 1 else v.argmax(axis=axis) for v in (x, y))
        confusion = np.bincount((a * classes + b).ravel(), minlength=classes**2).reshape(classes, classes)
        self._confusion = self._confusion + confusion if self._confusion.any() else confusion

    def values(self) -> dict[str, Any]:
        """Return both measures; classes that neither network gives count nothing."""
        if not self._confusion.any():
            return {}
        both = np.diag(self._confusion)
        either = self._confusion.sum(axis=0) + self._confusion.sum(axis=1) - both
        agreement, overlaps = both.sum() / self._confusion.sum(), both[either > 0] / either[either > 0]
        most = self._confusion.sum(axis=1).max() / self._confusion.sum()
        return {"pixel_agreement": float(agreement), "mean_iou": float(overlaps.mean()), "most_frequent": float(most)}


class Embedding(Measure):
    """How many samples keep their nearest neighbour among all samples."""

    def __init__(self) -> None:
        self._kept: list[tuple[Array, Array]] = []

    def add(self, x: Array, y: Array) -> None:
        """Take one vector per sample."""
        if sum(len(kept) for kept, _ in self._kept) < _MOST_VECTORS:
            self._kept.append((_rows(x), _rows(y)))

    def values(self) -> dict[str, Any]:
        """Return the share of neighbours, where there are enough samples."""
        if sum(len(kept) for kept, _ in self._kept) < _LEAST_VECTORS:
            return {}
        nearest = []
        for side in zip(*self._kept, strict=True):
            vectors = np.concatenate(side)[:_MOST_VECTORS]
            with np.errstate(all="ignore"):
                directions = np.nan_to_num(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
            likeness = directions @ directions.T
            np.fill_diagonal(likeness, -np.inf)
            nearest.append(likeness.argmax(axis=1))
        return {"neighbours_kept": float((nearest[0] == nearest[1]).mean())}


class Detections(Measure):
    """Boxes that are kept, where the layout is known; decisions that are kept; noise of every channel."""

    def __init__(self) -> None:
        self._kept = self._boxes = self._matched = self._decisions = 0
        self._sums: Array = np.zeros((4, 1))  # by channel: of ones, of values, of their squares, of squared errors

    def add(self, x: Array, y: Array, boxes: Sequence[Array] = ()) -> None:
        """Take an output, and boxes that stand in another one."""
        has_object = x.ndim == 3 and x.shape[1] > x.shape[2]
        x, y = _channels_last(x), _channels_last(y)
        a, b = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        sums = np.full(a.shape[1], len(a)), a.sum(axis=0), np.square(a).sum(axis=0), np.square(b - a).sum(axis=0)
        self._sums = self._sums + np.stack(sums)
        scores = ((a >= 0) & (a <= 1)).all(axis=0)
        self._decisions += int((a[:, scores] > SCORE).sum() + (b[:, scores] > SCORE).sum())
        self._kept += 2 * int(((a[:, scores] > SCORE) & (b[:, scores] > SCORE)).sum())
        first, second = (
            decode_boxes(values, x, (boxes[i], boxes[0]) if boxes else None, has_object=has_object)
            for i, values in enumerate((x, y))
        )
        for mine, other in zip(first, second, strict=True):
            self._boxes += len(mine.scores) + len(other.scores)
            self._matched += 2 * len(match_boxes(mine, other))

    def values(self) -> dict[str, Any]:
        """Return shares where there are enough detections, and the worst channels."""
        count, total, square, error = self._sums
        power = square - total**2 / np.maximum(count, 1)
        with np.errstate(all="ignore"):
            noise = 10 * np.log10(power / error)
        varied = np.flatnonzero((power > 1e-9 * square) & ~np.isnan(noise))
        order = varied[np.argsort(noise[varied], kind="stable")]
        values: dict[str, Any] = {
            "worst_channels": tuple((int(i), float(noise[i])) for i in order[:_WORST]),
            "channel_snr_db": float(np.median(noise[varied])) if varied.size else None,
        }
        if self._decisions >= _FEWEST:
            values["decisions_kept"] = self._kept / self._decisions
        if self._boxes >= _FEWEST:
            values["boxes_kept"] = self._matched / self._boxes
        return values


class Listed(Measure):
    """Final detections that are kept."""

    def __init__(self) -> None:
        self._matched = self._boxes = 0

    def add(self, x: Array, y: Array) -> None:
        """Take boxes and scores of both networks in pairs, shape (pairs, 5); zeros where there is none."""
        first, second = x.any(axis=1), y.any(axis=1)
        self._matched += 2 * int((first & second).sum())
        self._boxes += int(first.sum() + second.sum())

    def values(self) -> dict[str, Any]:
        """Return the share where there are enough detections."""
        return {"boxes_kept": self._matched / self._boxes} if self._boxes >= _FEWEST else {}


#: By the kind of answer.
MEASURES: Mapping[AnswerKind, type[Measure]] = {
    AnswerKind.CLASSES: Classes, AnswerKind.TOKENS: Tokens, AnswerKind.DENSE: Dense, AnswerKind.EMBEDDING: Embedding,
    AnswerKind.DETECTIONS: Detections, AnswerKind.LISTED: Listed, AnswerKind.NUMBERED: Numbered,
    AnswerKind.REGRESSION: Measure,
}  # fmt: skip


def variety(named: Counter[int], classes: int) -> float:
    """Return how many classes answers name, beside as many as evenly drawn ones of so many samples would name."""
    samples = named.total()
    entropy = -math.fsum(count / samples * math.log(count / samples) for count in named.values())
    return math.exp(entropy) * (samples + classes) / (samples * classes)


def wilson_interval(successes: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """Return Wilson's confidence interval of a proportion, of 95 % by default.

    It holds for few trials and for proportions near 0 and 1, where the normal approximation does not (Wilson, *Probable
    inference, the law of succession, and statistical inference*, 1927).
    """
    p, z2 = successes / trials, z**2
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = z * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    # Exact at the ends, where rounding would leave the interval beside the proportion.
    return (0.0 if successes == 0 else centre - half, 1.0 if successes == trials else centre + half)


def _rows(x: Array) -> Array:
    return x.reshape(len(x), math.prod(x.shape[1:])) if x.ndim else x.reshape(1, 1)


def _margins(x: Array) -> Array:
    """Return how far the largest score of every answer is above the next one; NaN where there is no other."""
    scores = _rows(x)
    if scores.shape[1] < 2:
        return np.full(len(scores), np.nan)
    second, largest = np.partition(scores, -2, axis=1)[:, -2:].T
    return np.asarray(largest - second)


def _log_shares(x: Array) -> Array:
    """Return logarithms of probabilities, of logits or of probabilities themselves."""
    if x.size and x.min() >= 0 and np.allclose(x.sum(axis=-1), 1.0, atol=1e-3):
        x = np.log(np.clip(x, _LEAST_PROBABILITY, None))
    return log_softmax(x)


def _channels_last(x: Array) -> Array:
    if (x.ndim == 3 and x.shape[1] < x.shape[2]) or (x.ndim == 4 and not x.shape[1] == x.shape[2] != x.shape[3]):
        return np.moveaxis(x, 1, -1)
    return x
