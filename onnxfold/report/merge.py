"""Networks that a model was merged from, and its closeness to each of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxfold.report.latency import LatencyRecord, milliseconds
from onnxfold.report.verdict import Verdict

if TYPE_CHECKING:
    from onnxfold.report.fold_report import FidelityReport


@dataclass(frozen=True)
class NetworkShare:
    """One of the networks.

    Parameters
    ----------
    name : str
        Its file, or its number.
    fidelity : FidelityReport, optional
        Closeness of the outputs that stand for its own, on held-out generated inputs; None where it was not measured.
    verdict : Verdict, optional
        What is kept of it.
    """

    name: str
    fidelity: "FidelityReport | None" = None
    verdict: Verdict | None = None

    def __str__(self) -> str:
        if self.fidelity is None or self.verdict is None:
            return f"{self.name}: not measured"
        return f"{self.name}, {self.verdict} ({'; '.join(map(str, self.fidelity.outputs))})"


@dataclass(frozen=True)
class MergeRecord:
    """Networks in one model.

    Parameters
    ----------
    heads : tuple of str
        How each output was joined.
    networks : tuple of NetworkShare
        The networks.
    latency : LatencyRecord, optional
        Of the first network alone, and of the model; the report's own compares it with all networks beside each other.
    """

    heads: tuple[str, ...]
    networks: tuple[NetworkShare, ...]
    latency: LatencyRecord | None = None

    @property
    def beside_one(self) -> str:
        """The latency beside that of one network, in words; empty where it was not measured."""
        if self.latency is None:
            return ""
        times = f"{milliseconds(self.latency.before_s)} -> {milliseconds(self.latency.after_s)} ms"
        how = f"spread {self.latency.spread:.0%}, {self.latency.how}"
        return f"latency beside {self.networks[0].name} alone: {times}, {self.latency.ratio:.2f} of it ({how})"
