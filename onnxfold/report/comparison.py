"""The report of a comparison of two models."""

from dataclasses import dataclass
from typing import Any

from onnxfold.report.fold_report import FidelityReport, ModelSize
from onnxfold.report.latency import LatencyRecord
from onnxfold.report.perplexity import PerplexityRecord
from onnxfold.report.thresholds import Thresholds
from onnxfold.report.verdict import Verdict

#: The version of what the JSON of a comparison holds: another one means that a name or its meaning changed.
COMPARISON_SCHEMA = 1


@dataclass(frozen=True)
class ComparisonReport(FidelityReport):
    """A comparison of two models, and what each of them costs.

    Parameters
    ----------
    size_a, size_b : ModelSize, optional
        Parameters, multiply-accumulates and bytes; None where a model cannot be analysed.
    latency : LatencyRecord, optional
        Latencies of a and of b; None where they cannot be measured.
    perplexity : PerplexityRecord, optional
        Perplexities on a text, where one was given.
    verdict : Verdict, optional
        What b keeps of a, in one line.
    """

    size_a: ModelSize | None = None
    size_b: ModelSize | None = None
    latency: LatencyRecord | None = None
    perplexity: PerplexityRecord | None = None
    verdict: Verdict | None = None

    def __str__(self) -> str:
        """Return the printed lines of the command, but for its table of costs."""
        lines = [
            *([] if self.verdict is None else [str(self.verdict)]),
            *([] if self.perplexity is None else [str(self.perplexity)]),
            f"{self.samples} samples of {self.inputs}",
            *(f"  {output}" for output in self.outputs),
            *(f"  note: {note}" for note in self.notes),
        ]
        if self.accuracy_a is not None and self.accuracy_b is not None:
            lines.append(f"  accuracy {self.accuracy_a:.2%} -> {self.accuracy_b:.2%}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with the version of their names and meanings; None where a number is not finite."""
        return {"schema": COMPARISON_SCHEMA, **super().to_dict()}

    def failures(
        self,
        *,
        min_agreement: float | str | None = None,
        max_error: float | None = None,
        min_cosine: float | None = None,
        max_kl: float | None = None,
    ) -> list[str]:
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
        return Thresholds.of(min_agreement, max_error, min_cosine, max_kl).failures(self.outputs)
