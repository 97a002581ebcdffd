"""The estimated agreement of a folded network with its original on data, and the warning that follows from it."""

from dataclasses import dataclass

#: A model that gives fewer of the original's answers than this is of no use.
_USELESS = 0.2


@dataclass(frozen=True)
class Signs:
    """Signs that an estimate is made from; all are known at the end of a fold.

    Parameters
    ----------
    inputs : str
        Kind of the inputs that the fold was fitted on: 'deep-inversion', 'dead-leaves' or 'data'.
    held_out_agreement : float
        Fraction of held-out inputs on which the output keeps its largest entry: of a user's samples where the fold was
        fitted on such, else of generated inputs.
    held_out_samples : int
        How many these are.
    held_out_error : float
        Relative error of the output on them.
    curve_error : float, optional
        Sum over the groups of the relative errors that their error curves have at the chosen widths; None where no
        curves were computed.
    variety : float
        How many classes the original names on them; see :func:`onnxfold.fidelity.answer_measures.variety`.
    """

    inputs: str
    held_out_agreement: float
    held_out_samples: int
    held_out_error: float
    curve_error: float | None = None
    variety: float = 1.0


@dataclass(frozen=True)
class AgreementEstimate:
    """Estimated top-1 agreement with the original on data, for an output that names classes.

    Parameters
    ----------
    output : str
        Name of the output.
    agreement : float
        The estimate, in [0, 1].
    interval : pair of float
        It holds the agreement in 80 % of cases.
    signs : Signs
        What it was made from.
    """

    output: str
    agreement: float
    interval: tuple[float, float]
    signs: Signs

    def __str__(self) -> str:
        low, high = self.interval
        return f"estimated agreement on data {self.agreement:.0%} (80 % interval {low:.0%} to {high:.0%})"


def warning_below(agreement: float, called: str, *, has_data: bool) -> str:
    """Return one line of advice where a model would be of no use; else an empty one.

    Parameters
    ----------
    agreement : float
        Agreement with the original, in [0, 1].
    called : str
        Which agreement it is: 'estimated agreement', ...
    has_data : bool
        Whether the fold was fitted on samples of a user.
    """
    if agreement >= _USELESS:
        return ""
    more = "" if has_data else ", or give unlabeled samples with --calibration"
    return f"{called} below {100 * _USELESS:.0f} %: ask for less{more}"
