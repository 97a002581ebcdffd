"""How close one model's outputs are to another's."""

import numpy as np

from onnxfold.errors import ConfigError
from onnxfold.graph.tensors import Array
from onnxfold.report import Fidelity, FidelityReport


def fidelity(names: list[str], reference: list[Array], outputs: list[Array], *, inputs: str) -> FidelityReport:
    """Compare outputs, the first list being the reference.

    Parameters
    ----------
    names : list of str
        Output names.
    reference, outputs : list of ndarray
        Outputs of the two models on the same inputs.
    inputs : str
        What the inputs were, for the report.
    """
    found = []
    for name, a, b in zip(names, reference, outputs, strict=True):
        if a.dtype.kind not in "fiub" or a.shape != b.shape:
            continue
        x, y = a.astype(np.float64), b.astype(np.float64)
        scale = float(np.linalg.norm(x))
        error = float(np.linalg.norm(y - x))
        agreement = float((x.argmax(axis=1) == y.argmax(axis=1)).mean()) if x.ndim == 2 and x.shape[1] > 1 else None
        found.append(Fidelity(name, error / scale if scale else error, agreement))
    samples = len(reference[0]) if reference and reference[0].ndim else 1
    return FidelityReport(found, samples, inputs)


def accuracy(outputs: list[Array], labels: Array) -> float:
    """Return top-1 accuracy of the first output that is shaped like class scores.

    Raises
    ------
    ConfigError
        If no output has the shape (samples, classes).
    """
    for values in outputs:
        if values.ndim >= 2 and len(values) == len(labels) and int(np.prod(values.shape[2:])) == 1:
            return float((values.reshape(len(values), -1).argmax(axis=1) == labels.reshape(-1)).mean())
    raise ConfigError("labels were given but no output has the shape (samples, classes)")
