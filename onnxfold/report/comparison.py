"""A comparison of two models: its report, and thresholds that it is held against in pipelines."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxfold.config import checks
from onnxfold.errors import ConfigError
from onnxfold.report.closeness import NOT_VERIFIED, Fidelity, FidelityReport, Verdict
from onnxfold.report.records import LatencyRecord, ModelSize

#: What is said of an output, of its value and of a limit: nothing where the limit is met.
_Missed = Callable[[Fidelity, float, float], str]
#: Confidence of a one-sided bound.
_CONFIDENCE = 0.95
#: Samples above which no number is proposed.
_MOST_SAMPLES = 1 << 40


def lower_bound(successes: int, trials: int) -> float:
    """Return the exact (Clopper-Pearson) lower bound of a proportion, one-sided, of 95 % confidence."""
    from scipy.special import betaincinv  # takes a while to import

    return float(betaincinv(successes, trials - successes + 1, 1.0 - _CONFIDENCE)) if successes else 0.0


def samples_needed(proportion: float, failures: float) -> int | None:
    """Return the fewest samples that prove a proportion, if this fraction of them fails; None if none do."""

    def proves(samples: int) -> bool:
        return lower_bound(samples - math.ceil(failures * samples), samples) >= proportion

    high = 1
    while not proves(high):
        high *= 2
        if high > _MOST_SAMPLES or failures >= 1.0 - proportion:
            return None
    doubted = high // 2
    return doubted + 1 + bisect_left(range(doubted + 1, high + 1), True, key=proves)


def _too_few(output: Fidelity, agreement: float, least: float) -> str:
    samples = output.top1_samples or 0
    agree = round(agreement * samples)
    lost = samples - agree
    if least == 1.0:
        return f"{lost} disagreements of {samples}, where 100 % is asked for" if lost else ""
    bound = lower_bound(agree, samples)
    if bound >= least:
        return ""
    disagreements = "1 disagreement" if lost == 1 else f"{lost} disagreements"
    line = f"{disagreements} of {samples} prove {_percent(bound)}, less than {_percent(least)}"
    needed = samples_needed(least, lost / samples)
    if needed is None:
        return f"{line}; agreement is {_percent(agreement)}"
    how = "at this rate" if lost else "without a disagreement"
    return f"{line}; {needed:,} samples {how} would prove {_percent(least)}"


def _above(what: str) -> _Missed:
    return lambda _, value, limit: f"{what} {value:.3g} is above {limit:g}" if value > limit else ""


def _below_cosine(_: Fidelity, value: float, limit: float) -> str:
    # Rounding leaves equal vectors within some 1e-15 of 1.
    return f"cosine {value:.6g} is below {limit:g}" if value < limit - 1e-12 else ""


def _percent(proportion: float) -> str:
    """Return a bound in percent, rounded down: it must not say more than is proven."""
    return f"{math.floor(proportion * 1e4 + 1e-6) / 100:g} %"


def _fraction(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        return float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        fault = "is neither a fraction, such as 0.99, nor a percentage, such as 99%"
        raise ConfigError(f"{name}='{value}' {fault}") from None


@dataclass(frozen=True)
class Threshold:
    """A limit of what a comparison measures of every output."""

    value: Callable[[Fidelity], float | None]  # the measure of an output
    missed: _Missed
    most: float = math.inf
    zero: bool = True  # whether the limit may be 0


#: By the name of their option.
THRESHOLDS: Mapping[str, Threshold] = {
    "min_agreement": Threshold(lambda o: o.top1_agreement, _too_few, most=1.0, zero=False),
    "max_error": Threshold(lambda o: o.relative_error, _above("relative error")),
    "min_cosine": Threshold(lambda o: o.cosine, _below_cosine, most=1.0, zero=False),
    "max_kl": Threshold(lambda o: o.kl_divergence, _above("KL divergence")),
}


def check_thresholds(limits: Mapping[str, Any]) -> dict[str, float]:
    """Return limits by name, those that are None left out; a text with % is a part of 100."""
    checked = {}
    for name, limit in limits.items():
        if limit is not None:
            most, zero = THRESHOLDS[name].most, THRESHOLDS[name].zero
            checked[name] = checks.bounded_number(name, _fraction(name, limit), most=most, zero=zero)
    return checked


def failures_of(outputs: Sequence[Fidelity], limits: Mapping[str, float]) -> list[str]:
    """Return one line for every threshold that an output misses; one that nothing is held against is not met."""
    lines = []
    for name, limit in limits.items():
        threshold = THRESHOLDS[name]
        measured = [(o, v) for o in outputs if (v := threshold.value(o)) is not None and not math.isnan(v)]
        lines += [f"output '{o.output}': {line}" for o, v in measured if (line := threshold.missed(o, v, limit))]
        if not measured:
            called = name.partition("_")[2]
            lines.append(f"the threshold of {called} is not met: no output was measured in this way")
    return lines


@dataclass(frozen=True)
class ComparisonReport(FidelityReport):
    """A comparison of two models, and what each of them costs."""

    size_a: ModelSize | None = None  # None where a model cannot be analysed
    size_b: ModelSize | None = None
    latency: LatencyRecord | None = None  # of a and of b; None where it cannot be measured
    verdict: Verdict = NOT_VERIFIED  # what b keeps of a

    def __str__(self) -> str:
        """Return the printed lines of the command, but for its table of costs."""
        lines = [
            str(self.verdict),
            f"{self.samples} samples of {self.inputs}",
            *(f"  {output}" for output in self.outputs),
            *(f"  {line}" for line in self.lines),
            *(f"  note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    def failures(
        self, *, min_agreement: float | str | None = None, max_error: float | None = None,
        min_cosine: float | None = None, max_kl: float | None = None,
    ) -> list[str]:  # fmt: skip
        """Return one line for every threshold that an output misses; none if all are met.

        Parameters
        ----------
        min_agreement : float or str, optional
            Top-1 agreement in (0, 1], or in percent as "99%": below 1, it must be proven by the number of samples, as
            the exact binomial (Clopper-Pearson) lower bound of 95 % confidence; 1 asks for every sample.
        max_error : float, optional
            Largest relative error of an output.
        min_cosine : float, optional
            Smallest mean cosine, in (0, 1].
        max_kl : float, optional
            Largest mean Kullback-Leibler divergence of the classes, in nats.

        Raises
        ------
        ConfigError
            If a threshold makes no sense.
        """
        limits = {"min_agreement": min_agreement, "max_error": max_error, "min_cosine": min_cosine, "max_kl": max_kl}
        return failures_of(self.outputs, check_thresholds(limits))
