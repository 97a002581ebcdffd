"""Training of a folded model towards the answers of the original, which is the teacher: no labels are needed.

All weights train, or scales and biases of normalisations only, each relative to its size: w = w0 + s d with s the root
mean square of w0, by Adam on d. What falls is the divergence of the answers from the original's on the inputs of the
fold; where they are no scores, the relative squared error. A quarter of the inputs is held out: if the answers on these
come no closer, the weights stay as they are.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from onnxfold.config import FoldConfig
from onnxfold.errors import ConfigError, UnsupportedModelError, VerificationError
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.run.session import Session, in_batches, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.progress import Progress
from onnxfold.report import RefinementRecord
from onnxfold.statistics.activations import Batches
from onnxfold.torch_graph.availability import find_device, load_torch, require_torch
from onnxfold.torch_graph.norms import norm_weights

if TYPE_CHECKING:
    from torch import Tensor

    from onnxfold.torch_graph.executor import TorchGraph

#: What the progress callback is told.
STAGE = "refine"
#: Steps of Adam, and the first step's size, relative to weights; steps become smaller along half a cosine.
STEPS, RATE = 200, 1e-2
#: Positions of tokens, or samples of other networks, per step, and held-out ones on which the result is judged.
_TOKENS, _SAMPLES, _JUDGED = 512, 32, 4_096
#: Axes of caches that hold keys and values together, whose first axis is no batch.
_TOGETHER = 5
#: A loss that rounding alone may give.
_ALIKE = 1e-7
#: Constants with larger entries mask positions, and train nothing.
_LARGEST = 1e3
_TINY = 1e-12


@dataclass(frozen=True)
class _Answers:
    """The output that norms are trained on, and whether it scores classes along its last axis."""

    output: str
    are_scores: bool


def require_refinable(view: GraphView, config: FoldConfig) -> None:
    """Check that a model can be trained as a request says, before anything is run."""
    require_torch("refine")
    find_device(config.torch_device)
    if not _trained_names(view, config.refine):
        if config.refine == "norms":
            raise ConfigError("refine 'norms' trains scales and biases of norms, and the model has none: take 'all'")
        raise ConfigError("refine trains float weights, and the model has none: leave it out")
    from onnxfold.torch_graph.executor import unsupported_ops

    reasons = unsupported_ops(view)
    if reasons:
        raise UnsupportedModelError(f"the model cannot be refined: {reasons[0]}")


def _trained_names(view: GraphView, what: str) -> list[str]:
    """Return the weights that are trained, each once."""
    if what == "norms":
        return norm_weights(view)
    load_torch()
    from onnxfold.torch_graph.module import trained_weights

    return [name for name in dict.fromkeys(trained_weights(view)) if np.abs(view.weight(name)).max() <= _LARGEST]


def refine_fold(
    view: GraphView, original: ModelLike, data: ChosenInputs, config: FoldConfig, progress: Progress
) -> RefinementRecord | None:
    """Train a folded model, in place, where that is requested; Ctrl-C ends the training, and no more."""
    if not config.refine:
        return None
    if data.inputs is None:
        raise VerificationError(f"refine needs inputs, and the network cannot be run: {' '.join(data.notes)}")
    began, inputs = time.perf_counter(), data.inputs
    load_torch()
    import torch

    from onnxfold.inputs.inversion.descent import Adam
    from onnxfold.torch_graph.executor import TorchGraph

    names = _trained_names(view, config.refine)
    graph, teacher = TorchGraph(view, device=find_device(config.torch_device), fed=names), Session(original)
    shown, held_out = inputs.split()
    answers = _compared_answers(view, inputs)
    teacher.output_names = [answers.output]
    starts = {name: graph.tensor(view.weight(name)) for name in names}
    spans = {name: max(float(start.square().mean().sqrt()), _TINY) for name, start in starts.items()}
    moves = {name: torch.zeros_like(start, requires_grad=True) for name, start in starts.items()}
    adam = Adam(list(moves.values()))

    def weights() -> "dict[str, Tensor]":
        return {name: starts[name] + spans[name] * moves[name] for name in names}

    judged = _parts(held_out.batches, inputs, most=_JUDGED)
    with torch.no_grad():
        before = after = _mean_loss(graph, teacher, judged, answers, weights())
    batches = _parts(shown.batches, inputs)
    steps = 0 if abs(before) <= _ALIKE else config.refine_steps or STEPS
    done, kept, note = 0, False, "" if steps else "nothing is refined: held-out answers are the original's already"
    try:
        for at in _order(len(batches), steps, config.seed):
            progress(STAGE, done, steps)
            wanted = graph.tensor(teacher.run(batches[at])[0])
            loss = _loss(_run(graph, batches[at], answers, weights()), wanted, answers)
            loss.backward()  # type: ignore[no-untyped-call]
            for move in moves.values():
                move.grad = torch.zeros_like(move) if move.grad is None else move.grad  # of what is not compared
            adam.step(RATE * 0.5 * (1.0 + math.cos(math.pi * done / steps)))
            done += 1
    except KeyboardInterrupt:
        note = f"the refinement was interrupted after {done} of {steps} steps: "
    if done:
        with torch.no_grad():
            tuned = weights()
        after = _mean_loss(graph, teacher, judged, answers, tuned)
        kept = math.isfinite(after) and after < before
        for name, values in tuned.items() if kept else ():
            view.set_weight(name, values.cpu().numpy())
    if done < steps:
        note += "what they gave is kept" if kept else "the network is as it was before them"
    trained = sum(start.numel() for start in starts.values())
    return RefinementRecord(config.refine, trained, done, before, after, kept, time.perf_counter() - began, note)


def _compared_answers(view: GraphView, inputs: ModelInputs) -> _Answers:
    """Return the output that says most: scores, where there are any."""
    answers = inputs.tokens.answers
    names = [name for name in view.output_names if answers is None or name not in answers.states]
    for name in names:
        shape = view.shape(name) or (None,)
        classes = shape[-1] or 0
        if classes > 1 and (len(shape) == 2 if answers is None else answers.vocabulary == classes):
            return _Answers(name, True)
    return _Answers(names[0], False)


def _parts(batches: Batches, inputs: ModelInputs, *, most: int = 0) -> Batches:
    """Return batches of the size of a step, so many positions or samples at most, if a number is given."""
    parts: Batches = []
    for batch in batches:
        size = sample_count(batch)
        if not inputs.fixed_batch and all(values.ndim < _TOGETHER for values in batch.values()):
            length = max((values.shape[1] for values in batch.values() if values.ndim == 2), default=1)
            size = max(_TOKENS // length, 1) if inputs.are_tokens else _SAMPLES
        parts += list(in_batches(batch, size))
    if not most:
        return parts
    per_part = _TOKENS if inputs.are_tokens else _SAMPLES
    return parts[: max(most // per_part, 1)]


def _order(count: int, steps: int, seed: int) -> list[int]:
    """Return which batch every step takes: all in a random order, then all again."""
    random = np.random.default_rng(seed)
    rounds = max(-(-steps // count), 1)
    return np.concatenate([random.permutation(count) for _ in range(rounds)])[:steps].tolist()  # type: ignore[no-any-return]


def _run(graph: "TorchGraph", feeds: dict[str, Array], answers: _Answers, weights: "dict[str, Tensor]") -> "Tensor":
    tensors = {name: graph.tensor(values) for name, values in feeds.items()}
    return graph.run(tensors | weights, [answers.output])[answers.output]


def _loss(outputs: "Tensor", wanted: "Tensor", answers: _Answers) -> "Tensor":
    if not answers.are_scores:
        return (outputs - wanted).square().sum() / wanted.square().sum().clamp_min(_TINY)
    log_p, log_q = wanted.log_softmax(-1), outputs.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


def _mean_loss(
    graph: "TorchGraph", teacher: Session, batches: Sequence[dict[str, Array]], answers: _Answers,
    weights: "dict[str, Tensor]",
) -> float:  # fmt: skip
    """Return the mean loss on some batches."""
    import torch

    with torch.no_grad():
        pairs = ((_run(graph, batch, answers, weights), graph.tensor(teacher.run(batch)[0])) for batch in batches)
        return float(np.mean([float(_loss(outputs, wanted, answers)) for outputs, wanted in pairs]))
