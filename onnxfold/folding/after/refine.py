"""Training of a folded model towards the answers of the original, which is the teacher: no labels are needed.

All weights train, or scales and biases of normalisations only, by steps relative to their size. What falls is, of a
language model's scores, their divergence from the original's; of all outputs of other networks, their squared error
over the variance that the original's have. A quarter of the inputs is held out, of long texts a tenth; of inverted
images and written text one that no fold was shown. These choose the first rate, the largest that brings their answers
no farther away in a few steps, and the best of several moments. If there is none that is better than the closed form,
the weights stay as they are. On generated images, weights stay near the closed form: farther away, what they gain on
these they lose on real ones (WiSE-FT, arXiv 2109.01903, goes back in the same way).
"""

import math
import time

from onnxfold.budget.costs.running import count_token_macs
from onnxfold.channels.layers import holds_statistics
from onnxfold.config import FoldConfig
from onnxfold.errors import ConfigError, UnsupportedModelError, VerificationError
from onnxfold.folding.after.refine_samples import TOKENS_PER_STEP, split_steps, with_more_samples
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.run.session import sample_count
from onnxfold.graph.shapes.footprint import tensor_bytes
from onnxfold.graph.tensors import is_float
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.synthetic import sample_cost
from onnxfold.inputs.inversion.deep_inversion import picked_scores
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.machine import memory
from onnxfold.progress import Progress
from onnxfold.report import RefinementRecord
from onnxfold.torch_graph.availability import find_device, load_torch, require_torch

#: Cost that a refinement may have: about five minutes of two quiet cores, and of a language model fifteen.
_COST, _COST_OF_TOKENS = 30e12, 70e12
#: Least number of steps where nobody says it, that of a language model, the largest, and the multiply-accumulates of a
#: step that is not too small.
_LEAST, _LEAST_OF_TOKENS, _MOST, _STEP_COST = 400, 200, 1_000, 4e10
#: Least and largest number of images in a step.
_FEW, _MANY = 16, 64
#: A forward and a backward pass, and the original's.
_PASSES = 4
#: A loss that rounding alone may give.
_ALIKE = 1e-7


def require_refinable(view: GraphView, config: FoldConfig) -> None:
    """Check that a model can be trained as a request says, before anything is run."""
    require_torch("refine")
    find_device(config.torch_device)
    from onnxfold.folding.after.training import trained_names
    from onnxfold.torch_graph.executor import unsupported_ops

    if not trained_names(view, config.refine):
        if config.refine == "norms":
            raise ConfigError("refine 'norms' trains scales and biases of norms, and the model has none: take 'all'")
        raise ConfigError("refine trains float weights, and the model has none: leave it out")
    reasons = unsupported_ops(view) or ([] if trained_answers(view) else ["it answers with integers alone"])
    if reasons:
        raise UnsupportedModelError(f"the model cannot be refined: {reasons[0]}")


def trained_answers(view: GraphView) -> tuple[str, ...]:
    """Return the outputs of numbers; where there are none, the scores that classes are picked from."""
    for names in (view.output_names, [picked_scores(view, name) for name in view.output_names]):
        if floats := tuple(name for name in dict.fromkeys(names) if is_float(view.elem_type(name))):
            return floats
    return tuple(name for name in view.output_names[:1] if not view.elem_type(name))


def refine_fold(
    view: GraphView, original: ModelLike, data: ChosenInputs, config: FoldConfig, progress: Progress
) -> RefinementRecord | None:
    """Train a folded model, in place, where that is requested; Ctrl-C ends the training, and no more."""
    if not config.refines:
        return None
    if data.inputs is None:
        raise VerificationError(f"refine needs inputs, and the network cannot be run: {' '.join(data.notes)}")
    began, inputs, note = time.perf_counter(), data.inputs, ""
    load_torch()
    from onnxfold.folding.after.training import Training, join_single_samples

    kept = activation_bytes(view, inputs)
    if inputs.are_tokens:
        samples = sample_count(split_steps(inputs.batches[:1], inputs, 1)[0])
        cost, total, least = float(count_token_macs(view) * TOKENS_PER_STEP), _COST_OF_TOKENS, _LEAST_OF_TOKENS
    else:
        sample = max(sample_cost(view), 1.0)
        samples = min(max(1 << round(math.log2(_STEP_COST / (_PASSES * sample))), _FEW), _MANY)
        samples = max(min(samples, memory.limit() // max(kept, 1)), 1)
        cost, total, least = sample * samples, _COST, _LEAST
    memory.require(kept * samples, "a step of a refinement")
    steps = config.refine_steps or int(min(max(total / max(_PASSES * cost, 1.0), least), _MOST))
    try:
        inputs = with_more_samples(original, inputs, steps * TOKENS_PER_STEP, config, progress)
    except KeyboardInterrupt:
        note = "the refinement was interrupted before its first step: the network is as it was"
    training = Training(view, original, join_single_samples(view, inputs), config, samples)
    before = training.judge()
    if note := note or _why_not(view, inputs, before):
        return RefinementRecord(config.refine, training.size, 0, before, before, False, 0.0, note)
    done, after, note = training.run(steps, before, progress)
    if after < before:
        training.write(view)
    seconds = time.perf_counter() - began
    return RefinementRecord(config.refine, training.size, done, before, after, after < before, seconds, note)


def _why_not(view: GraphView, inputs: ModelInputs, before: float) -> str:
    """Return why nothing is refined; empty where it is.

    Dead leaves are not data: answers on them, with the statistics of data, led an EfficientNet-Lite1 from 61 % of the
    photographs to 38 %, and a ResNet32 nowhere; with the statistics of the leaves in both networks, to 52 % at most.
    """
    if abs(before) <= _ALIKE:
        return "nothing is refined: held-out answers are the original's already"
    if inputs.facts.doubt.of_variances and holds_statistics(view):
        return (
            f"nothing is refined: on {inputs.kind} BatchNormalizations see other statistics than on data, and training "
            "would follow these; give --calibration"
        )
    return ""


def activation_bytes(view: GraphView, inputs: ModelInputs) -> int:
    """Return the bytes of one sample's activations, which all wait for the backward pass, and of their gradients."""
    batch = inputs.batches[0]
    types = view.types_for({name: values.shape for name, values in batch.items()})
    written = (types.get(name) for node in view.nodes for name in node.output)
    return 2 * sum(tensor_bytes(kind, open_dimension=1) or 0 for kind in written) // sample_count(batch)
