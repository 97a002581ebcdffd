"""Comparison of two models on the same inputs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np

from onnxfold.config import checks
from onnxfold.config.checks import takes_keywords
from onnxfold.config.pixels import RGB, PixelScale, pixel_scale
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.fidelity.continuation import WINDOW, WINDOWS, TextRequest, read_windows
from onnxfold.fidelity.estimate import verdict_on
from onnxfold.fidelity.held_out import Texts, held_out_inputs, measure_fidelity
from onnxfold.fidelity.measures import correct_answers, fidelity, label_flips
from onnxfold.folders import model_file
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.run.session import Feeds, Session, fixed_batch, in_batches, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_inputs import checked_labels, require_file, require_samples
from onnxfold.inputs.given_samples import Given, given_samples, is_folder
from onnxfold.inputs.images.synthetic import noise_inputs
from onnxfold.inputs.input_plan import assumed_sizes
from onnxfold.inputs.tokens.cache_heads import cache_outputs
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.token_plan import size_of
from onnxfold.latency.interleaved import latency_of_two
from onnxfold.passes.normalize.constants import InlineFunctions
from onnxfold.progress import Progress, silent
from onnxfold.report import FidelityReport
from onnxfold.report.comparison import ComparisonReport

#: Most images that are read from a folder.
MOST_IMAGES = 512
_LONGEST_WINDOW, _MOST_WINDOWS = 1 << 20, 1 << 20


class CompareOptions(TypedDict, total=False):
    """Options of a comparison by name."""

    text: str | Path | None
    tokenizer: str | Path | None
    window: int
    windows: int
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    channels: str
    seed: int
    threads: int


@takes_keywords(
    CompareOptions,
    text=None, tokenizer=None, window=WINDOW, windows=WINDOWS, mean=None, std=None, channels=RGB, seed=0, threads=1,
)  # fmt: skip
def compare(
    a: ModelLike, b: ModelLike, inputs: Given | None = None, labels: Array | None = None, *,
    progress: Progress | None = None, **options: Unpack[CompareOptions],
) -> ComparisonReport:  # fmt: skip
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
    seed, threads = checks.seed(options["seed"]), checks.threads(options["threads"])
    scale = pixel_scale(options["mean"], options["std"], options["channels"])
    if not isinstance(inputs, Mapping | None):
        require_samples(inputs, scaled=scale is not None)
    elif scale is not None:
        raise ConfigError("mean, std and channels are for a folder of images: give one as inputs, or leave them out")
    a, b = model_file(a), model_file(b)
    views = []
    for model in (a, b):
        with suppress(UnsupportedModelError):  # too old to be folded; onnxruntime may still run it
            views.append(load(model))  # says what is wrong with a file better than onnxruntime does
    pair = _Pair(a, b, views, seed, threads, progress or silent)
    tokenizer = None if options["tokenizer"] is None else checks.path("tokenizer", options["tokenizer"])
    request: TextRequest | None = None
    if options["text"] is not None:
        window = checks.whole("window", options["window"], least=2, most=_LONGEST_WINDOW)
        windows = checks.whole("windows", options["windows"], least=1, most=_MOST_WINDOWS)
        request = TextRequest(require_file(checks.path("text", options["text"])), tokenizer, window, windows)
    if request is not None and inputs is not None:
        raise ConfigError("the models are compared on data or on a text: give one of them")
    if inputs is None and labels is not None:
        raise ConfigError("labels need the inputs that they belong to: give these, too")
    with np.errstate(all="ignore"):  # values that are not finite are reported by name
        if request is not None:
            return pair.compare_on_text(request)
        if inputs is None:
            report, sample = pair.compare_on_generated(tokenizer), None
        else:
            report, sample = pair.compare_on_given(inputs, labels, scale)
    return pair.with_costs(report, sample)


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two models that are compared, with what is said of both."""

    a: ModelLike
    b: ModelLike
    views: list[GraphView]  # of both; of fewer where an operator set is too old to be folded
    seed: int
    threads: int
    progress: Progress

    @property
    def is_readable(self) -> bool:
        """Whether both models can be analysed."""
        return len(self.views) == 2

    @property
    def inlined(self) -> list[GraphView]:
        copies = [view.copy() for view in self.views]
        for copy in copies:
            InlineFunctions()(copy)
        return copies

    def sessions(self) -> list[Session]:
        counted = self.views if self.is_readable else (None, None)
        return [Session(model, counted=view) for model, view in zip((self.a, self.b), counted, strict=True)]

    def compare_on_text(self, request: TextRequest) -> ComparisonReport:
        if not self.is_readable:
            raise ConfigError("the operator set of a model is too old for a comparison on a text: give --data")
        sessions = self.sessions()
        sessions[0].output_names, sessions[1].output_names = _compared_outputs(*sessions)
        texts, meter, windows = read_windows(sessions, self.inlined, request, self.a, self.progress)
        report = meter.report(f"windows of {windows.shape[1]:,} tokens of '{request.path}'")
        report = texts.complete(report, meter, str(request.path))
        del sessions, texts
        return self.with_costs(report, None)

    def compare_on_generated(self, tokenizer: Path | None) -> FidelityReport:
        first, second = self.sessions()
        names = _compared_outputs(first, second)
        if not self.is_readable:
            raise ConfigError("inputs cannot be generated for such an old operator set: give --data")
        sizes = assumed_sizes(self.views[0])
        for view in self.views:
            view.assume(sizes)
        inlined = self.inlined
        texts = Texts(first, self.a, tokenizer)
        generated = held_out_inputs(*inlined, seed=self.seed, infos=first.inputs, texts=texts, progress=self.progress)
        first.output_names, second.output_names = names
        read = texts.continuation((first, second), inlined, self.progress)
        return measure_fidelity(first, second, generated, called="generated", view=inlined[0], texts=read)

    def compare_on_given(
        self, inputs: Given, labels: Array | None, scale: PixelScale | None
    ) -> tuple[FidelityReport, Feeds]:
        """Compare on samples of the user; return the first of them, too."""
        first, second = self.sessions()
        first.output_names, second.output_names = _compared_outputs(first, second)
        view = self.views[0] if self.views else None
        interface = None if view is None else token_interface(view)
        user = given_samples(first.inputs, inputs, scale, most=MOST_IMAGES, interface=interface)
        samples, labels = sample_count(user.arrays), user.labels if labels is None else labels
        labels = None if labels is None else checked_labels(labels, samples)
        reference, outputs = (session.run_in_batches(user.arrays) for session in (first, second))
        called = user.reason if is_folder(inputs) else "given data"
        report = fidelity(first.output_names, reference, outputs, inputs=called, view=view, samples=samples)
        report = replace(report, notes=[*user.notes, *report.notes])
        if labels is not None:
            before, after = correct_answers(reference, labels), correct_answers(outputs, labels)
            report = replace(
                report, accuracy_a=float(before.mean()), accuracy_b=float(after.mean()),
                flips=label_flips(before, after),
            )  # fmt: skip
        return report, next(in_batches(user.arrays, fixed_batch(info.shape for info in first.inputs) or 1))

    def with_costs(self, report: FidelityReport, sample: Feeds | None) -> ComparisonReport:
        """Return the report with the verdict and, where both models can be analysed, their costs."""
        judged = ComparisonReport(**vars(report), verdict=verdict_on(report))
        if not self.is_readable:
            return judged
        first, second = self.views
        latency = latency_of_two(
            (self.a, first), (self.b, second),
            lambda infos: sample or noise_inputs(infos, samples=1, seed=self.seed, view=first), threads=self.threads,
        )  # fmt: skip
        return replace(judged, size_a=size_of(first), size_b=size_of(second), latency=latency)


def _compared_outputs(first: Session, second: Session) -> tuple[list[str], list[str]]:
    """Return the outputs of two models to compare: all, but no caches where one of them has fewer."""
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
