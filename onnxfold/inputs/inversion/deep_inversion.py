r"""Deep inversion: inputs optimised from the weights alone, until they resemble training data.

Inputs are optimised by gradient descent until the statistics that they have at every BatchNormalization are the running
ones, which training left there, and until their class scores are spread evenly over the classes:

    sum over l of mean over c of [ ((m - mu) / sigma)^2 + (s / sigma - 1)^2 ]
        + alpha cross-entropy + tau total variation + lambda mean square ,

with m, s the mean and deviation of a batch at channel c of normalisation l and mu, sigma the running ones. The
published generator takes thousands of steps from noise; images with natural edges are so much closer to data that a
short descent from them is enough to fold by.

Most exporters fuse BatchNormalizations into the convolutions before them, and their statistics are lost. But on the
data that a network was trained on, the channels of such a convolution have means beta and deviations gamma, and these
differ little: they start as zeros and ones, and weight decay pulls all of them alike. On other inputs channels differ
more. So where there are no statistics, the first term becomes the unevenness of the channels of every convolution l,

    sum over l of mean over c of [ log(1 + ((m - m~) / s~)^2) + log(1 + log(s / s~)^2) ] ,

with m~ and s~ the medians over the channels of m and s. The logarithm lets few channels be exceptions. Without a
convolution either, only the class scores are left to go by.

References: DeepInversion, arXiv 1912.08795; used for folding in arXiv 2502.10216. That fused layers still tell beta and
gamma is used, for the bias of quantised layers, in Data-Free Quantization, arXiv 1906.04721.

torch is optional: this module can be imported, and can say what stands in the way, without it.
"""

from collections.abc import Mapping, Sequence

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.inversion.settings import Inversion, InversionSettings, LossTerms
from onnxfold.inputs.inversion.targets import class_scores, normalizations, optimised_inputs
from onnxfold.progress import Progress, silent
from onnxfold.torch_graph.availability import load_torch, require_torch, torch_is_available

__all__ = ["Inversion", "InversionSettings", "LossTerms", "deep_inversion", "obstacle"]

_DEFAULTS = InversionSettings()


def obstacle(view: GraphView) -> str:
    """Return why a model cannot be inverted, '' if it can; nothing is computed."""
    if not torch_is_available():
        return "torch is not installed (pip install torch)"
    if not optimised_inputs(view):
        return "the model has no float input"
    if not normalizations(view) and not class_scores(view):
        return "the model has neither BatchNormalization nor class scores"
    load_torch()
    from onnxfold.torch_graph.executor import unsupported_ops

    reasons = unsupported_ops(view)
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return reasons[0] + more if reasons else ""


def deep_inversion(
    view: GraphView,
    start: Mapping[str, Array] | Sequence[Mapping[str, Array]],
    *,
    seed: int = 0,
    threads: int | None = None,
    settings: InversionSettings = _DEFAULTS,
    progress: Progress = silent,
) -> Inversion:
    """Optimise inputs until the network takes them for data."""
    require_torch("deep inversion")
    hindrance = obstacle(view)
    if hindrance:
        raise UnsupportedModelError(f"deep inversion is not possible: {hindrance}; use other inputs")
    from onnxfold.inputs.inversion.invert import invert, torch_threads

    batches = [dict(start)] if isinstance(start, Mapping) else [dict(batch) for batch in start]
    with torch_threads(threads):
        return invert(view, batches, settings, seed, progress)
