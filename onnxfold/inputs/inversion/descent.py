"""Gradient descent on inputs."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from onnxfold.errors import UnsupportedModelError
from onnxfold.inputs.inversion.adam import Adam
from onnxfold.inputs.inversion.objective import InversionObjective, Terms, total_variation
from onnxfold.inputs.inversion.schedule import Schedule
from onnxfold.inputs.inversion.settings import InversionSettings, LossTerms
from onnxfold.inputs.inversion.targets import spatial_axes


class Descent:
    """Optimises a batch of inputs."""

    def __init__(self, objective: InversionObjective, settings: InversionSettings, seed: int, batch: int = 0) -> None:
        self._objective, self._settings = objective, settings
        self._random = np.random.Generator(np.random.PCG64(seed).jumped(batch))
        alone = not (objective.has_statistics or objective.has_fused)
        steps = settings.steps_without_statistics if alone else settings.steps_fused
        self.planned = settings.steps if objective.has_statistics else steps
        self._class_weight = settings.class_weight_without_statistics if alone else settings.class_weight
        self._variation_weight = settings.variation_weight_without_statistics if alone else settings.variation_weight

    def run(
        self,
        feeds: Mapping[str, Tensor],
        names: list[str],
        labels: Tensor,
        schedule: Schedule,
        tell: Callable[[Schedule], None],
    ) -> dict[str, Tensor]:
        """Return one batch, optimised."""
        leaves = {name: feeds[name].clone().requires_grad_() for name in names}
        adam = Adam(list(leaves.values()))
        while schedule.running:
            tell(schedule)
            off = self._gradients(feeds, leaves, labels)
            adam.step(self._settings.learning_rate * schedule.rate)
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
        parts = [self._settings.square_weight * x.square().mean() for x in leaves.values()]
        parts += [self._variation_weight * _variation(x) for x in leaves.values()]
        if terms.statistics is not None:
            parts.append(terms.statistics)
        if terms.evenness is not None:
            parts.append(self._settings.evenness_weight * terms.evenness)
        if terms.scores is not None:
            parts.append(self._class_weight * terms.scores)
        return torch.stack(parts).sum()

    def _augment(self, x: Tensor) -> Tensor:
        """Return a batch rolled along its spatial axes and, of images, perhaps flipped left to right."""
        axes = spatial_axes(tuple(x.shape))
        reach = [min(self._settings.shift, x.shape[a] - 1) for a in axes]
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
