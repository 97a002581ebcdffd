"""The methods as rows of one table: partition x merge x repair."""

from dataclasses import dataclass

from onnxfold.errors import ConfigError


@dataclass(frozen=True)
class Method:
    """A composition.

    Parameters
    ----------
    name : str
        Name on the command line.
    normalize_rows : bool
        Merge rows divided by the standard deviation of their BatchNormalization, not raw ones.
    repair : {'none', 'approximate'}
        What is done about the activation statistics after the merge.
    summary : str
        One line for the help text.
    """

    name: str
    normalize_rows: bool
    repair: str
    summary: str


METHODS = {
    m.name: m
    for m in (
        Method("fold-ar", True, "approximate", "k-means, mean, approximate repair from the weights (no data)"),
        Method("fold-naive", False, "none", "k-means, mean, no repair"),
    )
}


#: Compositions whose parts exist (:mod:`onnxfold.passes.repair_least_squares`) but that are no user's choice yet.
_PLANNED = {"fold-ls": "least-squares compensation"}


def find_method(name: str) -> Method:
    """Return a method by name.

    Raises
    ------
    ConfigError
        If there is no such method.
    """
    if name in METHODS:
        return METHODS[name]
    if name in _PLANNED:
        raise ConfigError(f"method '{name}' ({_PLANNED[name]}) is not part of this version yet: use fold-ar")
    raise ConfigError(f"method '{name}' is unknown: choose one of {', '.join(METHODS)}")
