"""Distances between the outputs of two models."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from onnxfold.errors import ConfigError, VerificationError
from onnxfold.graph.tensors import Array
from onnxfold.inputs.tokens.answers import log_softmax
from onnxfold.report import Fidelity, FidelityReport

#: The quantile of the normal distribution that leaves 2.5 % above it.
_Z95 = 1.959963984540054
#: Names of outputs that hold keys and values, with their rank, and of those that score words.
_STATE, _LEAST_STATE = re.compile(r"(^|[._/])(present|past)", re.IGNORECASE), 3
_SCORES = re.compile(r"logits", re.IGNORECASE)
#: Rows whose probabilities are computed at a time; how near to 1 the sum of stated probabilities is, and the least that
#: one of them counts as: an int8 model states zeros.
_ROWS, _NEAR_ONE, _LEAST_PROBABILITY = 256, 1e-3, 1e-7


@dataclass
class _Sums:
    """Sums over one output so far."""

    error: float = 0.0
    scale: float = 0.0
    agree: int = 0
    rows: int = 0
    undefined: int = 0
    seen: int = 0
    named: Counter[int] = field(default_factory=Counter)
    classes: int = 0
    cosine: float = 0.0
    vectors: int = 0
    divergence: float = 0.0


@dataclass
class FidelityMeter:
    """Compares outputs batch by batch, so that many samples need no memory.

    Parameters
    ----------
    names : list of str
        Output names.

    Attributes
    ----------
    samples : int
        Samples so far.
    other_shapes : dict of str to None
        Outputs that had different shapes in the two models, and are not compared.
    states : dict of str to None
        Outputs that hold what a language model has read, for the next run; they are no answers.
    """

    names: Sequence[str]
    samples: int = 0
    other_shapes: dict[str, None] = field(default_factory=dict)
    states: dict[str, None] = field(default_factory=dict)
    _sums: dict[int, _Sums] = field(default_factory=dict)

    def add(self, reference: Sequence[Array], outputs: Sequence[Array], *, samples: int | None = None) -> None:
        """Take the outputs of both models on a batch.

        Parameters
        ----------
        reference, outputs : sequence of ndarray
            Outputs on the same inputs, in the order of the names.
        samples : int, optional
            How many these are; the length of the first output if not given.

        Raises
        ------
        VerificationError
            If an output is NaN or infinite where the reference is a number.
        """
        if samples is None:
            samples = len(reference[0]) if reference and reference[0].ndim else 1
        self.samples += samples
        for i, (a, b) in enumerate(zip(reference, outputs, strict=True)):
            if a.dtype.kind not in "fiub":
                continue
            if a.ndim >= _LEAST_STATE and _STATE.search(self.names[i]):
                self.states[self.names[i]] = None
                continue
            if a.shape != b.shape:
                self.other_shapes[self.names[i]] = None
                continue
            with np.errstate(all="ignore"):  # what is not finite is looked for, not stumbled over
                self._add(self.names[i], self._sums.setdefault(i, _Sums()), a, b)

    def _add(self, name: str, sums: _Sums, a: Array, b: Array) -> None:
        x, y = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(x)
        lost = finite & ~np.isfinite(y)
        if lost.any():
            kind = "NaN" if np.isnan(y[lost]).any() else "infinite"
            raise VerificationError(
                f"output '{name}' is {kind} in {int(lost.sum())} places where the original's is finite"
            )
        sums.seen += x.size
        if not finite.all():
            sums.undefined += int(np.isnan(x).sum())
            finite &= np.isfinite(y)
        sums.scale += float(np.square(x[finite]).sum())
        sums.error += float(np.square(y[finite] - x[finite]).sum())
        if x.ndim == 3 and _SCORES.search(name):  # of the words at every position
            x, y = x.reshape(-1, x.shape[2]), y.reshape(-1, y.shape[2])
        if x.ndim == 2 and x.shape[1] > 1:
            answers = ~(np.isnan(x) | np.isnan(y)).any(axis=1)  # the largest of numbers and NaN is no answer
            before, after = x[answers].argmax(axis=1), y[answers].argmax(axis=1)
            sums.rows += int(answers.sum())
            sums.agree += int((before == after).sum())
            sums.named.update(before.tolist())
            sums.classes = x.shape[1]
            sums.divergence += _divergence(x[answers], y[answers])
        self._add_cosines(sums, x, y)

    def _add_cosines(self, sums: _Sums, x: Array, y: Array) -> None:
        """Take the cosines of the vectors of samples; what is not finite on one side counts as 0 on both."""
        rows = (len(x), -1) if x.ndim > 1 and x.size else (1, -1)
        x, y = x.reshape(rows), y.reshape(rows)
        for start in range(0, len(x), _ROWS):
            a, b = x[start : start + _ROWS], y[start : start + _ROWS]
            both = np.isfinite(a) & np.isfinite(b)
            a, b = np.where(both, a, 0.0), np.where(both, b, 0.0)
            norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
            # Two vectors of zeros are alike, and zeros are unlike anything else.
            alike = np.where(norms > 0.0, (a * b).sum(axis=1) / norms, (a == b).all(axis=1))
            compared = both.any(axis=1)
            sums.cosine += float(alike[compared].sum())
            sums.vectors += int(compared.sum())

    def report(self, inputs: str) -> FidelityReport:
        """Return what was found; `inputs` says what the inputs were."""
        found = []
        for i, sums in sorted(self._sums.items()):
            error, scale = math.sqrt(sums.error), math.sqrt(sums.scale)
            relative = error / scale if scale else error
            counted = sums.rows > 0
            found.append(
                Fidelity(
                    self.names[i],
                    math.nan if sums.seen and sums.undefined == sums.seen else relative,
                    sums.agree / sums.rows if counted else None,
                    wilson_interval(sums.agree, sums.rows) if counted else None,
                    sums.rows if counted else None,
                    variety(sums.named, sums.classes) if counted else None,
                    cosine=sums.cosine / sums.vectors if sums.vectors else None,
                    kl=sums.divergence / sums.rows if counted else None,
                )
            )
        return FidelityReport(found, self.samples, inputs, notes=self.notes)

    @property
    def notes(self) -> list[str]:
        """Notes on values that could not be compared."""
        notes = [
            f"output '{name}' has a shape that depends on the data; its values were not compared"
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


def _divergence(was: Array, is_now: Array) -> float:
    """Return the sum over rows of the Kullback-Leibler divergences of the probabilities that two models state."""
    total = 0.0
    for start in range(0, len(was), _ROWS):
        p, q = was[start : start + _ROWS], is_now[start : start + _ROWS]
        if (p >= 0.0).all() and np.allclose(p.sum(axis=1), 1.0, atol=_NEAR_ONE):  # probabilities, not scores
            p, q = (np.log(np.clip(rows, _LEAST_PROBABILITY, None)) for rows in (p, q))
        a, b = log_softmax(p), log_softmax(q)
        weights = np.exp(a)
        total += float(np.where(weights > 0.0, weights * (a - b), 0.0).sum())
    return max(total, 0.0)  # rounding


def fidelity(
    names: Sequence[str], reference: Sequence[Array], outputs: Sequence[Array], *, inputs: str
) -> FidelityReport:
    """Compare outputs, the first list being the reference.

    Parameters
    ----------
    names : list of str
        Output names.
    reference, outputs : list of ndarray
        Outputs of the two models on the same inputs.
    inputs : str
        What the inputs were, for the report.

    Raises
    ------
    VerificationError
        If an output is NaN or infinite where the reference is a number.
    """
    meter = FidelityMeter(names)
    meter.add(reference, outputs)
    return meter.report(inputs)


def variety(named: Counter[int], classes: int) -> float:
    """Return how many classes answers name, beside as many as evenly drawn ones of so many samples would name.

    Parameters
    ----------
    named : Counter
        Samples per class.
    classes : int
        Classes that there are.

    Returns
    -------
    float
        exp(entropy) of the answers over n c / (n + c): about 1 where n samples of all c classes are drawn alike, near 0
        where all samples get the same answer.
    """
    samples = named.total()
    entropy = -math.fsum(count / samples * math.log(count / samples) for count in named.values())
    return math.exp(entropy) * (samples + classes) / (samples * classes)


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % confidence interval of a proportion.

    It holds for few trials and for proportions near 0 and 1, where the normal approximation does not.

    Parameters
    ----------
    successes, trials : int
        Counts; at least one trial.

    References
    ----------
    Wilson, *Probable inference, the law of succession, and statistical inference*, 1927.
    """
    p, z2 = successes / trials, _Z95**2
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z95 * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    # Exact at the ends, where rounding would leave the interval beside the proportion.
    return (0.0 if successes == 0 else centre - half, 1.0 if successes == trials else centre + half)


def drop_interval(lost: int, won: int, trials: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of the difference of two proportions that were found on the same samples.

    Parameters
    ----------
    lost, won : int
        Samples on which only the first, and only the second was right; all others say nothing about the difference.
    trials : int
        All samples; at least one.

    Returns
    -------
    pair of float
        Of (lost - won) / trials: Wald's interval with one more sample of either kind, which holds for few samples.

    References
    ----------
    Bonett and Price, *Adjusted Wald confidence interval for a difference of binomial proportions based on paired data*,
    2012.
    """
    a, b = (lost + 1) / (trials + 2), (won + 1) / (trials + 2)
    half = _Z95 * math.sqrt((a + b - (a - b) ** 2) / (trials + 2))
    return max(a - b - half, -1.0), min(a - b + half, 1.0)


def accuracy(outputs: list[Array], labels: Array) -> float:
    """Return top-1 accuracy; see :func:`correct_answers`."""
    return float(correct_answers(outputs, labels).mean())


def correct_answers(outputs: list[Array], labels: Array) -> Array:
    """Return whether the first output that is shaped like class scores is right; scores with NaN are wrong.

    Parameters
    ----------
    outputs : list of ndarray
        Outputs of a model.
    labels : ndarray of int, shape (samples,)
        Classes.

    Returns
    -------
    ndarray of bool, shape (samples,)
        One answer per sample.

    Raises
    ------
    ConfigError
        If no output has the shape (samples, classes), or it has fewer classes than labels tell apart.
    """
    for values in outputs:
        if values.ndim >= 2 and len(values) == len(labels) and int(np.prod(values.shape[2:])) == 1:
            scores = values.reshape(len(values), -1)
            if labels.max(initial=0) >= scores.shape[1]:
                raise ConfigError(f"the labels go up to {labels.max()}, and the model has {scores.shape[1]} classes")
            answers = ~np.isnan(scores).any(axis=1) if scores.dtype.kind == "f" else np.ones(len(scores), bool)
            right: Array = (scores.argmax(axis=1) == labels.reshape(-1)) & answers
            return right
    raise ConfigError("labels were given but no output has the shape (samples, classes)")
