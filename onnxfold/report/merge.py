"""Networks that a model was merged from, and its closeness to each of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """

    name: str
    fidelity: "FidelityReport | None" = None

    def __str__(self) -> str:
        if self.fidelity is None:
            return f"{self.name}: not measured"
        parts = []
        for output in self.fidelity.outputs:
            agreement = output.top1_agreement
            text = f"{output.output}: relative error {output.relative_error:.3g}"
            parts.append(text if agreement is None else f"{text}, top-1 agreement {agreement:.1%}")
        return f"{self.name}, {self.fidelity.samples} samples of {self.fidelity.inputs}: {'; '.join(parts)}"


@dataclass(frozen=True)
class MergeRecord:
    """Networks in one model.

    Parameters
    ----------
    heads : tuple of str
        How each output was joined.
    networks : tuple of NetworkShare
        The networks.
    """

    heads: tuple[str, ...]
    networks: tuple[NetworkShare, ...]
