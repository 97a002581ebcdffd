"""Two models on the same inputs."""

from contextlib import suppress

from onnxfold import checks
from onnxfold.checks import known_keywords
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.graph.load import ModelLike, load
from onnxfold.graph.session import Session
from onnxfold.graph.tensors import Array
from onnxfold.report import FidelityReport
from onnxfold.statistics.fidelity import accuracy, fidelity
from onnxfold.statistics.given_inputs import checked_inputs, checked_labels
from onnxfold.statistics.noise import noise_inputs

_NOISE_SAMPLES = 64


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
        Arrays named after the inputs, samples along axis 0; noise if not given.
    labels : ndarray of int, shape (samples,), optional
        Then the report also has both accuracies.
    seed : int
        Seed of the noise.

    Raises
    ------
    ConfigError
        If inputs or labels do not fit the model, or an option makes no sense.
    ModelLoadError, VerificationError
        If a model cannot be read, or cannot be run.
    """
    seed = checks.seed(seed)
    for model in (a, b):
        with suppress(UnsupportedModelError):  # too old to be folded; onnxruntime may still run it
            load(model)  # says what is wrong with a file better than onnxruntime does
    first, second = Session(a), Session(b)
    if inputs is None and labels is not None:
        raise ConfigError("labels say nothing of generated inputs: give the inputs that they belong to, too")
    if inputs is None:
        feeds, kind = noise_inputs(first.inputs, samples=_NOISE_SAMPLES, seed=seed), "noise"
        reference, outputs = first.run(feeds), second.run(feeds)
    else:
        feeds, kind = checked_inputs(first.inputs, inputs), "given data"
        if labels is not None:
            labels = checked_labels(labels, max(len(v) for v in feeds.values() if v.ndim))
        reference, outputs = first.run_in_batches(feeds), second.run_in_batches(feeds)
    report = fidelity(first.output_names, reference, outputs, inputs=kind)
    if labels is None:
        return report
    return FidelityReport(report.outputs, report.samples, kind, accuracy(reference, labels), accuracy(outputs, labels))
