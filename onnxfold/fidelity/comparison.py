"""Comparison of two models on the same inputs."""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from onnxfold.config import checks
from onnxfold.config.checks import known_keywords
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.fidelity.held_out import held_out_inputs, measure_fidelity
from onnxfold.fidelity.measures import accuracy, fidelity
from onnxfold.graph.load import ModelLike, load
from onnxfold.graph.session import Session, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.inputs.given_inputs import checked_inputs, checked_labels
from onnxfold.passes.normalize.inline_functions import InlineFunctions
from onnxfold.report import FidelityReport


@known_keywords
def compare(
    a: ModelLike, b: ModelLike, inputs: dict[str, Array] | None = None, labels: Array | None = None, *, seed: int = 0
) -> FidelityReport:
    """Measure how close model `b` is to model `a` on the same inputs.

    Parameters
    ----------
    a, b : path or ModelProto
        Reference and candidate, with the same inputs.
    inputs : dict of str to ndarray, optional
        Arrays named after the inputs, samples along axis 0. By default inputs are generated, 256 samples or, for
        large networks, fewer: the same that check a fold with this seed.
    labels : ndarray of int, shape (samples,), optional
        Class of every sample. With labels the report has both accuracies.
    seed : int
        Seed of generated inputs.

    Returns
    -------
    FidelityReport
        Relative error and top-1 agreement of every output, in ``.outputs``; ``.accuracy_a`` and ``.accuracy_b``.

    Raises
    ------
    ConfigError
        If inputs or labels do not fit the model, the models have different numbers of outputs, or an option makes no
        sense.
    ModelLoadError
        If a model cannot be read.
    VerificationError
        If a model does not run, or `b` gives NaN or infinity where `a` gives numbers.

    Examples
    --------
    >>> from importlib.resources import files
    >>> import onnxfold
    >>> model = files("onnxfold.data") / "lenet5.onnx"
    >>> report = onnxfold.compare(model, model)
    >>> report.samples, report.outputs[0].relative_error
    (256, 0.0)
    """
    with np.errstate(all="ignore"):  # values that are not finite are reported by name
        return _compare(a, b, inputs, labels, checks.seed(seed))


def _compare(
    a: ModelLike, b: ModelLike, inputs: dict[str, Array] | None, labels: Array | None, seed: int
) -> FidelityReport:
    views = []
    for model in (a, b):
        with suppress(UnsupportedModelError):  # too old to be folded; onnxruntime may still run it
            views.append(load(model))  # says what is wrong with a file better than onnxruntime does
    counted = views if len(views) == 2 else (None, None)
    first, second = Session(a, counted=counted[0]), Session(b, counted=counted[1])
    if len(first.output_names) != len(second.output_names):
        raise ConfigError(f"one model has the outputs {first.output_names}, the other {second.output_names}")
    for one, other in ((first, second), (second, first)):
        missing = [info.name for info in one.inputs if info.name not in {i.name for i in other.inputs}]
        if missing:
            raise ConfigError(f"only one of the models has the input '{missing[0]}': both need the same inputs")
    if inputs is None:
        if labels is not None:
            raise ConfigError("labels need the inputs that they belong to: give these, too")
        if len(views) < 2:
            raise ConfigError("inputs cannot be generated for such an old operator set: give --data")
        for view in views:
            InlineFunctions()(view)
        return measure_fidelity(
            first, second, held_out_inputs(*views, seed=seed, infos=first.inputs), called="generated"
        )
    feeds = checked_inputs(first.inputs, inputs)
    if labels is not None:
        labels = checked_labels(labels, sample_count(feeds))
    reference, outputs = first.run_in_batches(feeds), second.run_in_batches(feeds)
    report = fidelity(first.output_names, reference, outputs, inputs="given data")
    if labels is None:
        return report
    return replace(report, accuracy_a=accuracy(reference, labels), accuracy_b=accuracy(outputs, labels))
