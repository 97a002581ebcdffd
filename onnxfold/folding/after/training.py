"""Training of a folded network in torch, beside the original, which is its teacher."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from onnxfold.config import FoldConfig
from onnxfold.errors import UnsupportedModelError
from onnxfold.folding.after.refine import trained_answers
from onnxfold.folding.after.refine_samples import draw_samples, held_out_part, judge_samples
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.run.session import Session, fixed_batch, joined_feeds
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.inversion.descent import read_layout
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.walk_batches import BATCH
from onnxfold.machine.instructions import multiplies_bfloat16
from onnxfold.progress import Progress
from onnxfold.torch_graph.availability import find_device
from onnxfold.torch_graph.executor import TorchGraph
from onnxfold.torch_graph.free_batch import takes_any_batch, with_free_batch
from onnxfold.torch_graph.module import trained_weights
from onnxfold.torch_graph.norms import norm_weights
from onnxfold.torch_graph.orthogonal import RelativeSteps, half_cosine

#: What the progress callback is told.
STAGE = "refine"
#: First rates, relative to weights, of which the first that does no harm in so many steps is taken; rates become
#: smaller along half a cosine, in the trial of a language model, too, whose steps show few tokens: SmolLM2 bears 5e-4
#: so. It gains more by 1e-3 in 300 steps, which its trial just refuses. A network without BatchNormalization may bear a
#: twentieth of another's.
RATES, _TRIAL = (1e-2, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4, 5e-5, 2e-5), 8
#: A loss that is so many times as large ends the trial of a rate.
_LOST = 10.0
#: Moments at which held-out answers are looked at, and the steps' worth of samples that are.
_MOMENTS, _JUDGED = 4, 4
#: How far matrices go from the closed form on generated images, in parts of their size.
NEAR = 0.07
#: Constants with larger entries mask positions, and train nothing.
_LARGEST = 1e3
_TINY = 1e-12


def trained_names(view: GraphView, what: str) -> list[str]:
    """Return the weights that are trained, each once."""
    if what == "norms":
        return norm_weights(view)
    return [name for name in trained_weights(view) if np.abs(view.weight(name)).max() <= _LARGEST]


def join_single_samples(view: GraphView, inputs: ModelInputs) -> ModelInputs:
    """Return inputs of a declared batch of one in larger batches; as they are where a network takes no others.

    A step on one sample follows that sample, and the answers to four of them do not tell which step is good.
    """
    first = inputs.batches[0]
    if not inputs.fixed_batch or inputs.are_tokens or any(len(values) != 1 for values in first.values() if values.ndim):
        return inputs
    graph = TorchGraph(with_free_batch(view))
    feeds = {name: graph.tensor(values) for name, values in first.items()}
    with torch.no_grad():
        if not takes_any_batch(graph, feeds, graph.run(feeds, tuple(view.output_names))):
            return inputs
    groups = [inputs.batches[i : i + BATCH] for i in range(0, len(inputs.batches), BATCH)]
    batches = [joined_feeds(group, [1] * len(group)) for group in groups]
    return replace(inputs, batches=batches, fixed_batch=False)


class Training:
    """A folded network in torch, its teacher, and the weights that train."""

    def __init__(
        self, view: GraphView, original: ModelLike, inputs: ModelInputs, config: FoldConfig, samples: int
    ) -> None:
        names = trained_names(view, config.refine)
        self._graph = TorchGraph(with_free_batch(view), device=find_device(config.torch_device), fed=names)
        shown, held_out = inputs.split(held_out_part(inputs, _JUDGED))
        self._outputs, self._are_scores = _compared_answers(view, inputs)
        teacher = _teacher(original, self._outputs)
        teacher.output_names = list(self._outputs)
        is_fixed = not inputs.are_tokens and fixed_batch(info.shape for info in teacher.inputs) is not None
        answers_of = teacher.run_in_batches if is_fixed else teacher.run
        self._weights = {name: self._graph.tensor(view.weight(name)).requires_grad_() for name in names}
        self._best = self._copy()
        self._pairs = [(weight, self._best[name]) for name, weight in self._weights.items()]
        self._matrices = [(w, closed, closed.norm()) for w, closed in self._pairs if w.ndim > 1 and closed.any()]
        self._is_generated = not (inputs.are_tokens or inputs.facts.is_data)
        self._draws = draw_samples(view, shown, samples, config.seed)
        judged = judge_samples(view, held_out, samples, config.seed + 1, _JUDGED)
        wanted = [answers_of(batch) for batch in judged]
        self._scales = [_scale([answers[i] for answers in wanted]) for i in range(len(self._outputs))]
        self._judged = [(batch, self._tensors(answers)) for batch, answers in zip(judged, wanted, strict=True)]
        self._are_tokens = inputs.are_tokens
        self._ask = self._in_torch(original) or (lambda batch: self._tensors(answers_of(batch)))

    def _in_half(self) -> torch.autocast:
        """Multiply in bfloat16 for a language model where that is faster: a step of SmolLM2 takes 2.6 s, not 4.5."""
        device = self._graph.device.type
        is_half = self._are_tokens and (device == "cuda" or multiplies_bfloat16())
        return torch.autocast(device, torch.bfloat16, enabled=is_half)

    def _in_torch(self, original: ModelLike) -> Callable[[dict[str, Array]], list[Tensor]] | None:
        """Return the original in torch, which is faster there than in onnxruntime; None if torch does not run it."""
        try:
            graph = TorchGraph(with_free_batch(load(original)), device=self._graph.device.type)
            with torch.no_grad():
                graph.run(self._feeds(self._judged[0][0]), self._outputs)
        except UnsupportedModelError:
            return None

        def ask(batch: dict[str, Array]) -> list[Tensor]:
            with torch.no_grad(), self._in_half():
                answers = graph.run(self._feeds(batch), self._outputs)
            return [answers[name] for name in self._outputs]

        return ask

    @property
    def size(self) -> int:
        """Entries that train."""
        return sum(weight.numel() for weight in self._weights.values())

    def run(self, steps: int, before: float, progress: Progress) -> tuple[int, float, str]:
        """Train; return the steps that were taken, the best loss on held-out samples, and why it ended before."""
        done, best, note = 0, before, ""
        moments = {round(steps * (i + 1) / _MOMENTS) for i in range(_MOMENTS)}
        try:
            progress(STAGE, 0, steps)
            rate = self._find_rate(before)
            descent = self._descent()
            while done < steps:
                progress(STAGE, done, steps)
                batch = next(self._draws)
                self._train_loss(batch, self._ask(batch)).backward()  # type: ignore[no-untyped-call]
                descent.step(rate * half_cosine(done, steps))
                if self._is_generated:
                    self._stay_near()
                done += 1
                best = self._keep_best(best) if done in moments else best
        except KeyboardInterrupt:
            note = f"the refinement was interrupted after {done} of {steps} steps: "
            best = self._keep_best(best) if done else best
            note += "what they gave is kept" if best < before else "the network is as it was before them"
        return done, best, note

    @torch.no_grad()
    def _stay_near(self) -> None:
        """Go back towards the closed form, where matrices have gone too far on average."""
        moves = [(weight - closed).norm() / size for weight, closed, size in self._matrices]
        far = float(sum(moves)) / max(len(moves), 1)
        if far > NEAR:
            for weight, closed in self._pairs:
                weight.lerp_(closed, 1 - NEAR / far)

    @torch.no_grad()
    def judge(self) -> float:
        """Return the loss on held-out samples."""
        return float(np.mean([self._loss(batch, wanted).item() for batch, wanted in self._judged]))

    def write(self, view: GraphView) -> None:
        """Write the best weights into the model."""
        for name, values in self._best.items():
            view.set_weight(name, values.cpu().numpy())

    def _find_rate(self, before: float) -> float:
        """Return the largest rate that brings held-out answers no farther away; the weights stay."""
        shown = [(batch, self._ask(batch)) for batch in islice(self._draws, _TRIAL)]
        for rate in RATES:
            does_no_harm = self._try_rate(rate, shown, before)
            with torch.no_grad():
                for name, weight in self._weights.items():
                    weight.copy_(self._best[name])
            if does_no_harm:
                return rate
        return RATES[-1]

    def _try_rate(self, rate: float, shown: Sequence[tuple[dict[str, Array], list[Tensor]]], before: float) -> bool:
        """Take steps of a rate; return whether they bring held-out answers no farther away."""
        descent = self._descent()
        for i, (batch, wanted) in enumerate(shown):
            loss = self._train_loss(batch, wanted)
            if not loss.item() <= _LOST * before:
                return False
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step(rate * half_cosine(i, len(shown)) if self._are_tokens else rate)
        return self.judge() <= before

    def _descent(self) -> RelativeSteps:
        return RelativeSteps(list(self._weights.values()), orthogonal=not self._are_tokens)

    def _train_loss(self, batch: dict[str, Array], wanted: Sequence[Tensor]) -> Tensor:
        with self._in_half():
            return self._loss(batch, wanted)

    def _loss(self, batch: dict[str, Array], wanted: Sequence[Tensor]) -> Tensor:
        outputs = self._graph.run(self._feeds(batch) | self._weights, self._outputs)
        pairs = zip(self._outputs, wanted, self._scales, strict=True)
        return sum(self._difference(outputs[name], values, scale) for name, values, scale in pairs)  # type: ignore[return-value]

    def _feeds(self, batch: dict[str, Array]) -> dict[str, Tensor]:
        return {name: read_layout(self._graph.tensor(values)) for name, values in batch.items()}

    def _difference(self, outputs: Tensor, wanted: Tensor, scale: float) -> Tensor:
        outputs, wanted = outputs.float(), wanted.float()
        if not self._are_scores:
            return (outputs - wanted).square().mean() / scale
        log_p, log_q = wanted.log_softmax(-1), outputs.log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1).mean()

    def _tensors(self, arrays: Sequence[Array]) -> list[Tensor]:
        return [self._graph.tensor(values) for values in arrays]

    def _copy(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self._weights.items()}

    def _keep_best(self, best: float) -> float:
        """Keep the weights if held-out answers were never closer; return how close they were."""
        loss = self.judge()
        if not loss < best:
            return best
        self._best = self._copy()
        return loss


def _teacher(original: ModelLike, names: Sequence[str]) -> Session:
    """Return a session of the original that gives these tensors, which may lie in front of its outputs."""
    teacher = Session(original)
    hidden = [name for name in names if name not in teacher.output_names]
    if hidden:
        network = load(original)
        network.give_out(hidden)
        teacher = Session(network)
    return teacher


def _scale(answers: Sequence[Array]) -> float:
    """Return the variance of an output over samples; its mean square where there is one sample."""
    values = np.concatenate([np.float64(array.reshape(len(array) if array.ndim else 1, -1)) for array in answers])
    spread = float(values.var(axis=0).mean())
    return max(spread if spread > 0 else float(np.square(values).mean()), _TINY)


def _compared_answers(view: GraphView, inputs: ModelInputs) -> tuple[tuple[str, ...], bool]:
    """Return the outputs that are compared, and whether they are scores of tokens along the last axis.

    Of a language model these are its scores or its first output.
    """
    facts = inputs.tokens.answers
    if facts is None:
        return trained_answers(view), False
    names = [name for name in view.output_names if name not in facts.states]
    scores = [name for name in names if ((view.shape(name) or (None,))[-1] or 0) == facts.vocabulary]
    return (*scores, names[0])[:1], bool(scores)
