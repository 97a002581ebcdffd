"""Observation of networks in tests, with all moments at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfold.channels.group import FoldGroup
from onnxfold.graph.view import GraphView
from onnxfold.statistics.activations import Batches
from onnxfold.statistics.observe import ConsumerMoments, Observation, Observing, observe


@dataclass(frozen=True, eq=False)
class Observed(Observation):
    """An observation with the moments of every group, one per consumer."""

    moments: tuple[list[ConsumerMoments], ...] = ()


PLAIN = Observing()


def observed(view: GraphView, groups: Sequence[FoldGroup], inputs: Batches, how: Observing = PLAIN) -> Observed:
    """Run a network once, and keep all moments."""
    moments: list[list[ConsumerMoments]] = [[] for _ in groups]
    made = observe(view, groups, inputs, moments.__setitem__, how)
    return Observed(**vars(made), moments=tuple(moments))
