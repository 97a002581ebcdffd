"""Gradient descent on inputs."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from onnxfold.errors import UnsupportedModelError
from onnxfold.inputs.inversion.deep_inversion import spatial_axes
from onnxfold.inputs.inversion.objective import InversionObjective, Terms, total_variation
from onnxfold.inputs.inversion.settings import InversionSettings, LossTerms, Schedule

#: How much of the running mean and of the running mean square a step keeps.
_KEPT_MEAN, _KEPT_SQUARE = 0.9, 0.999
_EPSILON = 1e-8


class Adam:
    """Moves tensors against their gradients, with steps that are scaled by running moments of the gradient.

    torch has it, too, but imports its compiler with it, which takes a second. Kingma and Ba: arXiv 1412.6980.
    """

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self._leaves = leaves
        self._means = [torch.zeros_like(x) for x in leaves]
        self._squares = [torch.zeros_like(x) for x in leaves]
        self._done = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Take a step, and forget the gradients."""
        self._done += 1
        size = learning_rate / (1.0 - _KEPT_MEAN**self._done)
        root = math.sqrt(1.0 - _KEPT_SQUARE**self._done)
        for x, mean, square in zip(self._leaves, self._means, self._squares, strict=True):
            assert x.grad is not None
            mean.lerp_(x.grad, 1.0 - _KEPT_MEAN)
            square.mul_(_KEPT_SQUARE).addcmul_(x.grad, x.grad, value=1.0 - _KEPT_SQUARE)
            x.addcdiv_(mean, square.sqrt().div_(root).add_(_EPSILON), value=-size)
            x.grad = None


#: Every step sees the batch rolled by up to so many positions along every spatial axis.
_SHIFT = 2


class Descent:
    """Optimises a batch of inputs."""

    def __init__(self, objective: InversionObjective, settings: InversionSettings, seed: int, batch: int = 0) -> None:
        self._objective, self._settings = objective, settings
        self._random = np.random.Generator(np.random.PCG64(seed).jumped(batch))
        alone = not (objective.has_statistics or objective.has_fused)
        steps, weights = settings.steps, settings.weights
        self.planned = steps.alone if alone else steps.statistics if objective.has_statistics else steps.fused
        self._class_weight = weights.class_scores_alone if alone else weights.class_scores
        self._variation_weight = weights.variation_alone if alone else weights.variation

    def run(
        self, feeds: Mapping[str, Tensor], names: list[str], labels: Tensor, schedule: Schedule,
        tell: Callable[[Schedule], None],
    ) -> dict[str, Tensor]:  # fmt: skip
        """Return one batch, optimised."""
        leaves = {name: feeds[name].clone().requires_grad_() for name in names}
        adam = Adam(list(leaves.values()))
        while schedule.running:
            tell(schedule)
            off = self._gradients(feeds, leaves, labels)
            adam.step(self._settings.rate.highest * schedule.rate)
            schedule.note(off)
        return {name: x.detach() for name, x in leaves.items()}

    def _gradients(self, feeds: Mapping[str, Tensor], leaves: Mapping[str, Tensor], labels: Tensor) -> float:
        """Compute the gradients; return how far the statistics are off, the loss where there are none."""
        seen = {name: self._augment(x) for name, x in leaves.items()}
        terms = self._objective.terms({**feeds, **seen}, labels)
        if not any(t.requires_grad for t in terms.present):
            raise UnsupportedModelError("deep inversion is not possible: the outputs have no gradient at the inputs")
        loss = self._loss(terms, leaves)
        loss.backward()  # type: ignore[no-untyped-call]
        return float((loss if terms.statistics is None else terms.statistics).detach())

    @torch.no_grad()
    def measure(self, feeds: Mapping[str, Tensor], names: list[str], labels: Tensor) -> LossTerms:
        """Return the terms for a batch as it is."""
        terms = self._objective.terms({**feeds, **{n: _fast_layout(feeds[n]) for n in names}}, labels)
        return LossTerms(
            statistics=None if terms.statistics is None else float(terms.statistics),
            evenness=None if terms.evenness is None else float(terms.evenness),
            class_scores=None if terms.scores is None else float(terms.scores),
            variation=float(sum(_variation(feeds[n]) for n in names)),
            square=float(sum(feeds[n].square().mean() for n in names)),
        )

    def _loss(self, terms: Terms, leaves: Mapping[str, Tensor]) -> Tensor:
        parts = [self._settings.weights.square * x.square().mean() for x in leaves.values()]
        parts += [self._variation_weight * _variation(x) for x in leaves.values()]
        if terms.statistics is not None:
            parts.append(terms.statistics)
        if terms.evenness is not None:
            parts.append(self._settings.weights.evenness * terms.evenness)
        if terms.scores is not None:
            parts.append(self._class_weight * terms.scores)
        return torch.stack(parts).sum()

    def _augment(self, x: Tensor) -> Tensor:
        """Return a batch rolled along its spatial axes and, of images, perhaps flipped left to right."""
        axes = spatial_axes(tuple(x.shape))
        reach = [min(_SHIFT, x.shape[a] - 1) for a in axes]
        shifts = [int(self._random.integers(-r, r + 1)) for r in reach]
        if axes and any(shifts):
            x = x.roll(shifts, axes)
        if len(axes) > 1 and self._random.random() < 0.5:
            x = x.flip(axes[-1])
        return _fast_layout(x)


def _fast_layout(x: Tensor) -> Tensor:
    """Return images with their channels last in memory: convolutions are twice as fast in this layout.

    A single channel lies in both layouts; only the strides say which one the first convolution is to write.
    """
    if x.ndim != 4:
        return x
    if x.shape[1] == 1:
        return x.reshape(len(x), *x.shape[2:], 1).permute(0, 3, 1, 2)
    return x.contiguous(memory_format=torch.channels_last)


def _variation(x: Tensor) -> Tensor:
    return total_variation(x, spatial_axes(tuple(x.shape)))
