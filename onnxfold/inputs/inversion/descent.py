"""The loss that deep inversion minimises, as a function of a batch of inputs, and gradient descent on it."""

from collections.abc import Callable, Mapping
from threading import local
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.adam import adam

from onnxfold.channels.declarations import BatchNorm
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.nodes import node_key
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.input_scale import has_channels_last
from onnxfold.inputs.inversion.deep_inversion import (
    InversionSettings,
    LossTerms,
    Schedule,
    class_scores,
    fused_layers,
    has_statistics,
    normalizations,
    optimised_inputs,
)
from onnxfold.torch_graph.executor import TorchGraph, fast_layout
from onnxfold.torch_graph.registry import Operation


class NormalizeAndMeasure(torch.autograd.Function):
    """Normalise by the running statistics and measure the batch's, as one differentiable function.

    ``(x, a, b, centre) -> (a x + b, mean, variance)`` for x of shape (N, C, ...) and vectors of length C.

    The centre, any value near the mean, keeps the variance from being the difference of large numbers. With
    a = gamma / sqrt(var + eps) and b = beta - mu a, of every channel, and M samples per channel (batch times
    positions), y = a x + b, m = mean(x), v = mean((x - m)^2). Given the gradients of a loss with respect to the three,
    dx = a dy + (dm + 2 (x - m) dv) / M. Three operations of torch would read and write every activation about four
    times as often, and activations, not arithmetic, are what takes time beside the convolutions.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor, centre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalised tensor, in the type of x, and the statistics of the batch, of length C."""
        with torch.autocast("cpu", enabled=False):
            # All is added up in the type of the vectors. Operations on two types would convert every piece twice.
            wide = x.to(a.dtype)
            y = torch.empty_like(wide)
            if _rows(x) is None:
                variance, mean = torch.var_mean(wide, [0, *range(2, x.ndim)], correction=0)
            else:
                mean, variance = _moments(wide, centre, y)
            ctx.save_for_backward(x, a, mean)
            return torch.addcmul(_along(b, x), wide, _along(a, x), out=y).to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient with respect to x."""
        dy, dm, dv = grads
        x, a, mean = ctx.saved_tensors
        samples = x.numel() // x.shape[1]
        slope = 2.0 / samples * dv
        dx = torch.addcmul(_along(dm / samples - slope * mean, x), x.to(a.dtype), _along(slope, x))
        return dx.addcmul_(dy.to(a.dtype), _along(a, x)).to(x.dtype), None, None, None


def _rows(x: Tensor) -> Tensor | None:
    """Return x as a matrix of samples and channels without copying it, None where its layout does not allow that."""
    moved = x.movedim(1, -1)
    return moved.reshape(-1, x.shape[1]) if moved.is_contiguous() else None


def _moments(x: Tensor, centre: Tensor, work: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the channels; `work`, of the shape and layout of x, saves an allocation."""
    rows = _rows(torch.sub(x, _along(centre, x), out=work))
    assert rows is not None
    ones = rows.new_ones(len(rows))
    shift = ones @ rows / len(rows)
    square = ones @ rows.square_() / len(rows)
    return centre + shift, (square - shift * shift).clamp_min(0.0)


def _along(vector: Tensor, x: Tensor) -> Tensor:
    return vector.view(-1, *[1] * (x.ndim - 2))


#: Share of a layer's mean variance that is added to every channel's: the relative error of a channel that is always
#: (almost) the same would outweigh all others.
_FLOOR = 1e-3


class InversionObjective:
    """The distance of a batch's statistics from the likely ones, and the cross-entropy of its class scores.

    Threads may use it at a time.
    """

    def __init__(self, view: GraphView, *, half: bool = False) -> None:
        self._half = half
        self.graph, self.names, self.scores = TorchGraph(view), optimised_inputs(view), class_scores(view)
        norms, self.has_statistics = normalizations(view), has_statistics(view)
        fused = [] if self.has_statistics else fused_layers(view)
        self.has_fused = bool(fused)
        layers = [*(node for node, _ in norms), *(node for node, _ in fused)]
        self.wanted = list(dict.fromkeys([*map(node_key, layers), *filter(None, [self.scores])]))
        self._thread = local()  # errors of statistics that the layers of a run note, for each thread by itself
        self._thread.errors = []
        for node, norm in norms:
            self.graph.operations[node_key(node)] = self._norm_with_errors(view, norm)
        for node, name in fused:
            bias = self.graph.tensor(view.weight(name).reshape(-1))
            self.graph.operations[node_key(node)] = self._layer_with_errors(self.graph.operations[node_key(node)], bias)

    def terms(self, feeds: Mapping[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        """Return the terms that the model has for one batch, named as their :data:`WEIGHTS`."""
        self._thread.errors = errors = list[Tensor]()
        with torch.autocast("cpu", torch.bfloat16, enabled=self._half, cache_enabled=False):
            tensors = self.graph.run(feeds, self.wanted)
        terms = {"evenness" if self.has_fused else "statistics": torch.stack(errors).sum()} if errors else {}
        if self.scores:
            terms["class_scores"] = cross_entropy(tensors[self.scores].float().flatten(1), labels)
        return terms

    def _norm_with_errors(self, view: GraphView, norm: BatchNorm) -> Operation:
        """Return a BatchNormalization that notes how far the statistics of its batch are off."""
        names = (norm.scale, norm.shift, norm.mean, norm.variance)
        gamma, beta, mean, variance = (self.graph.tensor(view.weight(name)) for name in names)
        scale = gamma / torch.sqrt(variance + norm.epsilon)
        shift = beta - mean * scale
        floor = norm.epsilon + _FLOOR * variance.mean()
        deviation = torch.sqrt(variance + floor)

        def run(x: Tensor, *_: Tensor) -> Tensor:
            y, batch_mean, batch_variance = NormalizeAndMeasure.apply(x, scale, shift, mean)  # type: ignore[no-untyped-call]
            of_mean = ((batch_mean - mean) / deviation).square().mean()
            of_deviation = (torch.sqrt(batch_variance + floor) / deviation - 1.0).square().mean()
            self._thread.errors.append(of_mean + of_deviation)
            return y  # type: ignore[no-any-return]

        return run

    def _layer_with_errors(self, operation: Operation, bias: Tensor) -> Operation:
        """Return a layer that notes how uneven the statistics of its channels are."""
        unit, zero = torch.ones_like(bias), torch.zeros_like(bias)

        def run(*inputs: Tensor) -> Tensor:
            x = operation(*inputs)
            y, mean, variance = NormalizeAndMeasure.apply(x, unit, zero, bias)  # type: ignore[no-untyped-call]
            self._thread.errors.append(unevenness(mean, variance))
            return y  # type: ignore[no-any-return]

        return run


def unevenness(mean: Tensor, variance: Tensor) -> Tensor:
    """Return how far the channels' means and deviations are from those of the median channel.

    Few channels are exceptions by their weights, not by the inputs; so the error grows like a logarithm.
    """
    floor = _FLOOR * variance.detach().mean() + 1e-12
    deviation = torch.sqrt(variance + floor)
    typical, centre = deviation.detach().median(), mean.detach().median()
    of_mean = torch.log1p(((mean - centre) / typical).square()).mean()
    of_deviation = torch.log1p(torch.log(deviation / typical).square()).mean()
    return of_mean + of_deviation


class Adam:
    """Moves tensors against their gradients: torch's Adam, whose class takes a second to import torch's compiler."""

    def __init__(self, leaves: list[Tensor]) -> None:
        self._leaves = leaves
        self._means, self._squares = ([torch.zeros_like(x) for x in leaves] for _ in range(2))
        self._counts = [torch.zeros(()) for _ in leaves]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Take a step, and forget the gradients."""
        gradients = [x.grad for x in self._leaves if x.grad is not None]
        adam(
            self._leaves, gradients, self._means, self._squares, [], self._counts, foreach=False,
            amsgrad=False, beta1=0.9, beta2=0.999, lr=learning_rate, weight_decay=0.0, eps=1e-8, maximize=False,
        )  # fmt: skip
        for x in self._leaves:
            x.grad = None


#: Weights of the terms of the minimised loss, see :data:`LossTerms`, of the total variation along spatial axes, and of
#: the mean square; and those where there are neither statistics nor fused layers.
WEIGHTS = {"statistics": 1.0, "class_scores": 0.1, "evenness": 1.0, "variation": 0.01, "square": 0.001}
WEIGHTS_ALONE = WEIGHTS | {"class_scores": 1.0, "variation": 0.1}
#: Every step sees the batch rolled by up to so many positions along every spatial axis.
_SHIFT = 2


class Descent:
    """Optimises a batch of inputs."""

    def __init__(self, objective: InversionObjective, settings: InversionSettings, seed: int, batch: int = 0) -> None:
        self._objective, self._settings = objective, settings
        self._random = np.random.Generator(np.random.PCG64(seed).jumped(batch))
        alone = not (objective.has_statistics or objective.has_fused)
        steps = settings.steps
        self.planned = steps.alone if alone else steps.statistics if objective.has_statistics else steps.fused
        self._weights = WEIGHTS_ALONE if alone else WEIGHTS

    def run(
        self, feeds: Mapping[str, Tensor], labels: Tensor, schedule: Schedule, tell: Callable[[], None]
    ) -> dict[str, Tensor]:
        """Return one batch, optimised."""
        leaves = {name: feeds[name].clone().requires_grad_() for name in self._objective.names}
        adam = Adam(list(leaves.values()))
        while schedule.running:
            tell()
            off = self._gradients(feeds, leaves, labels)
            adam.step(self._settings.learning_rate * schedule.rate)
            schedule.note(off)
        return {name: x.detach() for name, x in leaves.items()}

    def _gradients(self, feeds: Mapping[str, Tensor], leaves: Mapping[str, Tensor], labels: Tensor) -> float:
        """Compute the gradients; return how far the statistics are off, the loss where there are none."""
        seen = {name: self._augment(x) for name, x in leaves.items()}
        terms = self._objective.terms({**feeds, **seen}, labels)
        if not any(t.requires_grad for t in terms.values()):
            raise UnsupportedModelError("deep inversion is not possible: the outputs have no gradient at the inputs")
        parts = [self._weights["square"] * x.square().mean() for x in leaves.values()]
        parts += [self._weights["variation"] * total_variation(x) for x in leaves.values()]
        loss = torch.stack([*parts, *(self._weights[name] * term for name, term in terms.items())]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(terms.get("statistics", loss).detach())

    @torch.no_grad()
    def measure(self, feeds: Mapping[str, Tensor], labels: Tensor) -> LossTerms:
        """Return the terms for a batch as it is."""
        terms = self._objective.terms({**feeds, **{n: read_layout(feeds[n]) for n in self._objective.names}}, labels)
        return {name: float(term) for name, term in terms.items()}

    def _augment(self, x: Tensor) -> Tensor:
        """Return a batch rolled along its spatial axes and, of images, perhaps flipped left to right."""
        axes = spatial_axes(x)
        reach = [min(_SHIFT, x.shape[a] - 1) for a in axes]
        shifts = [int(self._random.integers(-r, r + 1)) for r in reach]
        if axes and any(shifts):
            x = x.roll(shifts, axes)
        if len(axes) > 1 and self._random.random() < 0.5:
            x = x.flip(axes[-1])
        return read_layout(x)


def read_layout(x: Tensor) -> Tensor:
    """Return inputs as convolutions read them fastest: images whose last axis holds the channels lie so already."""
    return x.contiguous() if has_channels_last(x.shape) else fast_layout(x)


def total_variation(x: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbours along the spatial axes, summed over them."""
    parts = [x.diff(dim=axis).abs().mean() for axis in spatial_axes(x) if x.shape[axis] > 1]
    return torch.stack(parts).sum() if parts else x.new_zeros(())


def spatial_axes(x: Tensor) -> list[int]:
    """Return the axes along which neighbours are alike: of signals, images and volumes, channels first or last."""
    return [1, 2] if has_channels_last(x.shape) else list(range(2, x.ndim))
