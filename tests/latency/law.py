"""A machine without a clock: what layers and networks take is computed from their shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from onnxfold.budget.costs.running import timed_nodes
from onnxfold.graph.view import GraphView
from onnxfold.latency.interleaved import Timing
from onnxfold.latency.layers import LatencyProfile, LayerLatency
from onnxfold.latency.micro_models import LayerShape, Sample

Law = Callable[[LayerShape, int, int], float]


def blocks_of_8(shape: LayerShape, inputs: int, outputs: int) -> float:
    """Seconds of whole blocks: reading, writing, products."""
    c = inputs if inputs < 8 or not shape.is_tiled else -(-inputs // 8) * 8
    m = -(-outputs // 8) * 8 if shape.is_tiled else outputs
    return 1e-6 + 1e-9 * c + 2e-9 * m + 1e-11 * shape.macs(c, m)


def blocks_of_16(shape: LayerShape, inputs: int, outputs: int) -> float:
    """Seconds of whole blocks of 16, as on processors with AVX-512."""
    c = inputs if inputs < 16 or not shape.is_tiled else -(-inputs // 16) * 16
    m = -(-outputs // 16) * 16 if shape.is_tiled else outputs
    return 1e-6 + 1e-9 * c + 2e-9 * m + 1e-11 * shape.macs(c, m)


class Machine:
    """Takes a law of what a layer takes.

    Parameters
    ----------
    law : callable
        Seconds of a layer alone, at inputs and outputs.
    in_network : callable, optional
        Seconds of a layer inside a network, if it is another law.
    spread : float
        Part by which a network's seconds vary.
    noise : callable, optional
        Takes the number of a round, returns what slows down the fold in it, and not the input.
    """

    def __init__(
        self,
        law: Law = blocks_of_8,
        in_network: Law | None = None,
        spread: float = 0.0,
        noise: Callable[[int], float] = lambda _: 1.0,
    ) -> None:
        self.law, self.in_network, self.spread = law, in_network or law, spread
        self.noise = noise
        self.measured: list[LayerShape] = []
        self.timed = 0

    def measure(
        self, shape: LayerShape, pairs: Sequence[tuple[int, int]], seconds: float, *, threads: int
    ) -> tuple[Sample, ...]:
        self.measured.append(shape)
        return tuple((a, b, self.law(shape, a, b)) for a, b in pairs)

    def layers(self, view: GraphView) -> list[LayerLatency]:
        found = []
        for timed in timed_nodes([(view, [])]):
            shape = timed.shape
            elements = prod(max(length.whole, 1) for length in timed.amount)
            seconds = 1e-10 * elements if shape is None else self.in_network(shape, shape.inputs, shape.outputs)
            found.append(LayerLatency(timed.name, "Conv", timed.name, None, seconds, ()))
        return found

    def profile(self, view: GraphView, threads: int) -> LatencyProfile:
        return LatencyProfile(tuple(self.layers(view)), self.seconds(view), self.spread, threads, 9)

    def seconds(self, view: GraphView) -> float:
        return sum(layer.seconds for layer in self.layers(view))

    def timer(self, before: GraphView) -> Callable[[GraphView], Timing]:
        def time(after: GraphView) -> Timing:
            rounds = range(9 * self.timed, 9 * self.timed + 9)
            self.timed += 1
            both = 1.0 + self.spread * np.linspace(-1.0, 1.0, 9)[:, None]
            own = np.array([[1.0, self.noise(i)] for i in rounds])
            return Timing(both * own * np.array([[self.seconds(before), self.seconds(after)]]))

        return time
