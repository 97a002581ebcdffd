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

from collections.abc import Iterator, Mapping, Sequence

from onnx import NodeProto

from onnxfold.channels.layers import batch_norm
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.tensors import Array, is_float
from onnxfold.graph.view import GraphView
from onnxfold.inputs.inversion.settings import Inversion, InversionSettings, LossTerms
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
    view: GraphView, start: Mapping[str, Array] | Sequence[Mapping[str, Array]], *, seed: int = 0,
    threads: int | None = None, settings: InversionSettings = _DEFAULTS, progress: Progress = silent,
) -> Inversion:  # fmt: skip
    """Optimise inputs until the network takes them for data."""
    require_torch("deep inversion")
    hindrance = obstacle(view)
    if hindrance:
        raise UnsupportedModelError(f"deep inversion is not possible: {hindrance}; use other inputs")
    from onnxfold.inputs.inversion.invert import invert, torch_threads

    batches = [dict(start)] if isinstance(start, Mapping) else [dict(batch) for batch in start]
    with torch_threads(threads):
        return invert(view, batches, settings, seed, progress)


def optimised_inputs(view: GraphView) -> list[str]:
    """Return the float inputs that have a batch axis and another one."""
    return [n for n in view.input_names if is_float(view.elem_type(n)) and len(view.shape(n) or ()) >= 2]


def normalizations(view: GraphView) -> list[NodeProto]:
    """Return the BatchNormalizations with constant statistics that depend on an input that is optimised."""
    norms = ((node, batch_norm(view, node)) for node in _reached_nodes(view))
    return [
        n for n, norm in norms if norm and all(map(view.is_weight, (norm.scale, norm.shift, norm.mean, norm.variance)))
    ]


def fused_layers(view: GraphView) -> list[NodeProto]:
    """Return the convolutions with a constant bias that depend on an input that is optimised.

    They are where an exporter leaves a BatchNormalization that it fuses.
    """
    return [
        node
        for node in _reached_nodes(view)
        if node.op_type == "Conv" and len(node.input) > 2 and all(map(view.is_weight, node.input[1:3]))
    ]


def _reached_nodes(view: GraphView) -> Iterator[NodeProto]:
    """Yield the nodes that depend on an input that is optimised."""
    reached = set(optimised_inputs(view))
    for node in view.nodes:
        if not reached.isdisjoint(node.input):
            reached.update(o for o in node.output if o)
            yield node


def class_scores(view: GraphView) -> str:
    """Return the tensor with class scores before a softmax, '' if no output looks like them.

    They have the shape (samples, classes), or (samples, classes, 1, ...). Sigmoids are no scores of classes that
    exclude each other.
    """
    samples = {shape[0] for name in optimised_inputs(view) if (shape := view.shape(name))}
    for name in view.output_names:
        shape = view.shape(name)
        if shape and shape[0] is not None and None not in samples and shape[0] not in samples:
            continue
        if not shape or len(shape) < 2 or shape[1] is None or shape[1] < 2 or any(d != 1 for d in shape[2:]):
            continue
        producer = view.producer(name)
        if producer is None or not is_float(view.elem_type(name)) or producer.op_type in ("Sigmoid", "HardSigmoid"):
            continue
        return producer.input[0] if producer.op_type == "Softmax" else name
    return ""
