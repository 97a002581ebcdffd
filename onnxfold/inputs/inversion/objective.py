"""The loss that deep inversion minimises, as a function of a batch of inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import local

import torch
from onnx import NodeProto
from torch import Tensor
from torch.nn.functional import cross_entropy

from onnxfold.channels.layers import batch_norm
from onnxfold.graph.nodes import node_key
from onnxfold.graph.view import GraphView
from onnxfold.inputs.inversion.batch_statistics import NormalizeAndMeasure
from onnxfold.torch_graph.executor import TorchGraph
from onnxfold.torch_graph.registry import Operation

#: Share of a layer's mean variance that is added to every channel's: the relative error of a channel that is always
#: (almost) the same would outweigh all others.
_FLOOR = 1e-3


@dataclass(frozen=True)
class Terms:
    """Parts of the objective, unweighted; None where the model has no such part."""

    statistics: Tensor | None
    evenness: Tensor | None
    scores: Tensor | None

    @property
    def present(self) -> list[Tensor]:
        """The terms that the model has."""
        return [t for t in (self.statistics, self.evenness, self.scores) if t is not None]


class _ThreadErrors(local):
    """Errors of statistics that the layers of a run note, for each thread by itself."""

    def __init__(self) -> None:
        self.errors: list[Tensor] = []


class InversionObjective:
    """The distance of a batch's statistics from the likely ones, and the cross-entropy of its class scores.

    Threads may use it at a time.
    """

    def __init__(
        self,
        view: GraphView,
        norms: Sequence[NodeProto],
        scores: str,
        *,
        fused: Sequence[NodeProto] = (),
        half: bool = False,
    ) -> None:
        self._half = half
        self.graph = TorchGraph(view)
        self.has_statistics, self.has_fused = bool(norms), bool(fused)
        self.wanted = list(dict.fromkeys([*map(node_key, [*norms, *fused]), *([scores] if scores else [])]))
        self.scores = scores
        self._thread = _ThreadErrors()
        for node in norms:
            norm = batch_norm(view, node)
            assert norm is not None
            names = (norm.scale, norm.shift, norm.mean, norm.variance)
            parameters = [self.graph.tensor(view.weight(name)) for name in names]
            self.graph.operations[node_key(node)] = self._norm_with_errors(parameters, norm.epsilon)
        for node in fused:
            bias = self.graph.tensor(view.weight(node.input[2]))
            self.graph.operations[node_key(node)] = self._layer_with_errors(self.graph.operations[node_key(node)], bias)

    def terms(self, feeds: Mapping[str, Tensor], labels: Tensor) -> Terms:
        """Return the terms for one batch."""
        errors = self._thread.errors
        errors.clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=self._half, cache_enabled=False):
            tensors = self.graph.run(feeds, self.wanted)
        off = torch.stack(errors).sum() if errors else None
        scores = cross_entropy(tensors[self.scores].float().flatten(1), labels) if self.scores else None
        errors.clear()
        return Terms(None, off, scores) if self.has_fused else Terms(off, None, scores)

    def _norm_with_errors(self, parameters: Sequence[Tensor], epsilon: float) -> Operation:
        """Return a BatchNormalization that notes how far the statistics of its batch are off."""
        gamma, beta, mean, variance = parameters
        scale = gamma / torch.sqrt(variance + epsilon)
        shift = beta - mean * scale
        floor = epsilon + _FLOOR * variance.mean()
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


def total_variation(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the mean absolute difference of neighbours along the axes, summed over them."""
    parts = [x.diff(dim=axis).abs().mean() for axis in axes if x.shape[axis] > 1]
    return torch.stack(parts).sum() if parts else x.new_zeros(())
