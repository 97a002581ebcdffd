"""Comparison of two models on the same inputs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from onnxfold.config import checks
from onnxfold.config.checks import known_keywords
from onnxfold.config.pixels import PixelScale, pixel_scale
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.fidelity.held_out import Texts, held_out_inputs, measure_fidelity
from onnxfold.fidelity.judged import verdict_on
from onnxfold.fidelity.measures import accuracy, fidelity
from onnxfold.fidelity.perplexity import WINDOW, WINDOWS, TextRequest, compare_on_text
from onnxfold.folders import model_file
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.run.session import Feeds, Session, fixed_batch, in_batches, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.arrays import require_file, require_samples
from onnxfold.inputs.given_inputs import checked_labels
from onnxfold.inputs.given_samples import Given, given_samples, is_folder
from onnxfold.inputs.noise import noise_inputs
from onnxfold.inputs.tokens.cache_heads import cache_outputs
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.token_plan import size_of
from onnxfold.latency.two_models import latency_of_two
from onnxfold.passes.normalize.inline_functions import InlineFunctions
from onnxfold.progress import Progress, silent
from onnxfold.report import ComparisonReport, FidelityReport

#: Most images that are read from a folder.
_IMAGES = 512
_LONGEST_WINDOW, _MOST_WINDOWS = 1 << 20, 1 << 20


@known_keywords
def compare(
    a: ModelLike,
    b: ModelLike,
    inputs: Given | None = None,
    labels: Array | None = None,
    *,
    text: str | Path | None = None,
    tokenizer: str | Path | None = None,
    window: int = WINDOW,
    windows: int = WINDOWS,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    channels: str = "rgb",
    seed: int = 0,
    threads: int = 1,
    progress: Progress | None = None,
) -> ComparisonReport:
    """Measure how close model `b` is to model `a` on the same inputs, and what both of them cost.

    Parameters
    ----------
    a, b : path or ModelProto
        Reference and candidate, with the same inputs; or folders of language models.
    inputs : dict of str to ndarray or path, optional
        Arrays named after the inputs, samples along axis 0; an .npz file of them, with labels as `y`; or a folder of
        JPEG and PNG files, of which up to 512 are read. By default inputs are generated, 256 samples or, for large
        networks, fewer: the same that check a fold with this seed.
    labels : ndarray of int, shape (samples,), optional
        Class of every sample, instead of a file's. With labels the report has both accuracies.
    text : path, optional
        A text that two language models are compared on, with their perplexities, instead of inputs.
    tokenizer : path, optional
        The ``tokenizer.json`` of the models; by default, the one beside `a`. A text needs the extra ``text``.
    window, windows : int
        Tokens of a window of the text, and how many windows are read from its front at most; they do not overlap.
    mean, std : float or sequence of float, optional
        Mean and standard deviation of the pixels of a folder, one or one per channel. Numbers up to 1 are for pixels
        from 0 to 1, larger ones for pixels from 0 to 255.
    channels : str
        The order of channels that the model takes, and that mean and std are in: 'rgb', or 'bgr' as OpenCV reads.
    seed : int
        Seed of generated inputs.
    threads : int
        Threads inside an operator where latency is measured in onnxruntime.
    progress : callable, optional
        Called as ``progress(text, steps_done, steps)``.

    Returns
    -------
    ComparisonReport
        Relative error and top-1 agreement of every output, in ``.outputs``; ``.accuracy_a`` and ``.accuracy_b``;
        ``.size_a``, ``.size_b`` and ``.latency``; with a text, ``.perplexity``.

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
    tell = progress or silent
    seed, threads, scale = checks.seed(seed), checks.threads(threads), pixel_scale(mean, std, channels)
    if not isinstance(inputs, Mapping | None):
        require_samples(inputs, scaled=scale is not None)
    elif scale is not None:
        raise ConfigError("mean, std and channels are for a folder of images: give one as inputs, or leave them out")
    a, b = model_file(a), model_file(b)
    views = []
    for model in (a, b):
        with suppress(UnsupportedModelError):  # too old to be folded; onnxruntime may still run it
            views.append(load(model))  # says what is wrong with a file better than onnxruntime does
    tokenizer = None if tokenizer is None else checks.path("tokenizer", tokenizer)
    request = None if text is None else _text_request(text, tokenizer, window, windows)
    if request is not None and inputs is not None:
        raise ConfigError("the models are compared on data or on a text: give one of them")
    if inputs is None and labels is not None:
        raise ConfigError("labels need the inputs that they belong to: give these, too")
    with np.errstate(all="ignore"):  # values that are not finite are reported by name
        if request is not None:
            return _compare_text(a, b, views, request, tell, seed=seed, threads=threads)
        report, sample = _fidelity(a, b, views, inputs, labels, scale, seed, Texts(None, a, tokenizer), tell)
    if len(views) < 2:
        return ComparisonReport(**vars(report), verdict=verdict_on(report))
    return _add_costs(report, a, b, views, sample, seed=seed, threads=threads)


def _add_costs(
    report: FidelityReport, a: ModelLike, b: ModelLike, views: list[GraphView], sample: Feeds | None, *,
    seed: int, threads: int,
) -> ComparisonReport:  # fmt: skip
    first, second = views
    latency = latency_of_two(
        (a, first), (b, second), lambda infos: sample or noise_inputs(infos, samples=1, seed=seed, view=first),
        threads=threads,
    )  # fmt: skip
    return ComparisonReport(
        **vars(report), size_a=size_of(first), size_b=size_of(second), latency=latency, verdict=verdict_on(report)
    )


def _text_request(text: str | Path, tokenizer: Path | None, window: int, windows: int) -> TextRequest:
    window = checks.whole("window", window, least=2, most=_LONGEST_WINDOW)
    windows = checks.whole("windows", windows, least=1, most=_MOST_WINDOWS)
    path = require_file(checks.path("text", text))
    return TextRequest(path, tokenizer, window, windows)


def _compare_text(
    a: ModelLike, b: ModelLike, views: list[GraphView], request: TextRequest, progress: Progress, *,
    seed: int, threads: int,
) -> ComparisonReport:  # fmt: skip
    if len(views) < 2:
        raise ConfigError("the operator set of a model is too old for a comparison on a text: give --data")
    sessions = [Session(model, counted=view) for model, view in zip((a, b), views, strict=True)]
    for session, names in zip(sessions, _compared_outputs(*sessions), strict=True):
        session.output_names = names
    report, perplexity = compare_on_text(sessions, [_inline_functions(view) for view in views], request, a, progress)
    del sessions
    return replace(_add_costs(report, a, b, views, None, seed=seed, threads=threads), perplexity=perplexity)


def _inline_functions(view: GraphView) -> GraphView:
    copy = view.copy()
    InlineFunctions()(copy)
    return copy


def _compared_outputs(first: Session, second: Session) -> tuple[list[str], list[str]]:
    """Return the outputs of two models to compare: all, but no caches where one of them has fewer.

    Raises
    ------
    ConfigError
        If they take or give something else otherwise.
    """
    outputs = [session.output_names for session in (first, second)]
    inputs = [[info.name for info in session.inputs] for session in (first, second)]
    if len(cache_outputs(outputs[0])) != len(cache_outputs(outputs[1])):
        outputs, inputs = [_drop_caches(names) for names in outputs], [_drop_caches(names) for names in inputs]
    if len(outputs[0]) != len(outputs[1]):
        raise ConfigError(f"one model has the outputs {first.output_names}, the other {second.output_names}")
    for own, other in (inputs, inputs[::-1]):
        missing = [name for name in own if name not in other]
        if missing:
            raise ConfigError(f"only one of the models has the input '{missing[0]}': both need the same inputs")
    return outputs[0], outputs[1]


def _drop_caches(names: Sequence[str]) -> list[str]:
    return [name for name in names if not cache_outputs([name])]


def _fidelity(
    a: ModelLike,
    b: ModelLike,
    views: list[GraphView],
    inputs: Given | None,
    labels: Array | None,
    scale: PixelScale | None,
    seed: int,
    texts: Texts,
    progress: Progress,
) -> tuple[FidelityReport, Feeds | None]:
    """Return how close two models are, and the first of the given samples."""
    counted = views if len(views) == 2 else (None, None)
    first, second = Session(a, counted=counted[0]), Session(b, counted=counted[1])
    names = _compared_outputs(first, second)
    if inputs is None:
        if len(views) < 2:
            raise ConfigError("inputs cannot be generated for such an old operator set: give --data")
        texts = replace(texts, writer=first)
        inlined = [_inline_functions(view) for view in views]
        generated = held_out_inputs(*inlined, seed=seed, infos=first.inputs, texts=texts, progress=progress)
        first.output_names, second.output_names = names
        return measure_fidelity(first, second, generated, called="generated", view=inlined[0]), None
    first.output_names, second.output_names = names
    interface = token_interface(views[0]) if views else None
    user_samples = given_samples(first.inputs, inputs, scale, most=_IMAGES, interface=interface)
    labels = user_samples.labels if labels is None else labels
    samples = sample_count(user_samples.arrays)
    if labels is not None:
        labels = checked_labels(labels, samples)
    reference, outputs = first.run_in_batches(user_samples.arrays), second.run_in_batches(user_samples.arrays)
    called = user_samples.reason if is_folder(inputs) else "given data"
    view = views[0] if views else None
    report = fidelity(first.output_names, reference, outputs, inputs=called, view=view, samples=samples)
    report = replace(report, notes=[*user_samples.notes, *report.notes])
    if labels is not None:
        report = replace(report, accuracy_a=accuracy(reference, labels), accuracy_b=accuracy(outputs, labels))
    sample = next(in_batches(user_samples.arrays, fixed_batch(info.shape for info in first.inputs) or 1))
    return report, sample
