"""The original and the folded network, run side by side node by node over batches of inputs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
from onnx import NodeProto

from onnxfold.channels.declarations import Axis
from onnxfold.channels.layers import own_statistics
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.nodes import node_key, read_names
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.passes.base import Pass
from onnxfold.passes.merge.fold_channels import AxisMap, axis_map
from onnxfold.progress import Progress, silent
from onnxfold.statistics.activations import Activations, Batches, StagedBatches
from onnxfold.statistics.observe import Observation, match_statistics


@dataclass(frozen=True, eq=False)
class ObservedRepair(Pass):
    """A repair of a fold by what the original does on inputs."""

    original: GraphView  # the network before the merge
    plan: FoldPlan
    observation: Observation  # the original as it runs on the inputs, and the inputs
    progress: Progress = field(default=silent, compare=False)


class SideBySide:
    """Both networks' activations, and how their axes correspond."""

    def __init__(
        self, reference: GraphView, folded: GraphView, plan: FoldPlan, inputs: Batches | StagedBatches, *,
        matches: Literal["nothing", "deviating", "all"] = "nothing", heals: bool = False,
    ) -> None:  # fmt: skip
        self.plan = plan
        self._heals = heals
        self._matches = matches  # BatchNormalizations whose statistics are matched to the inputs
        self.reference = Activations(reference, inputs)
        self.folded = Activations(folded, inputs)
        self._maps: dict[tuple[str, int], AxisMap | None] = {}
        #: Weights that the fold changed by more than merging exact duplicates, those of them that a repair may change,
        #: and tensors that differ because of the first.
        self._changed = {m.axis.tensor for group in plan.lossy.groups for m in group.members}
        self._repaired = {m.axis.tensor for group in plan.lossy.groups if not group.is_part for m in group.members}
        self._deviating: set[str] = set()

    def steps(
        self, action: str, progress: Progress, written: Callable[[NodeProto], bool] | None = None
    ) -> Iterator[tuple[NodeProto, NodeProto]]:
        """Yield corresponding nodes, to be run by the caller; forget after each what no later one reads.

        A fold changes weights and numbers, never the nodes or their results' names.
        """
        by_output = {node_key(node): node for node in self.folded.view.nodes}
        looked_at: dict[str, list[str]] = {}  # by a repair, when it comes to a node
        for node in self.reference.view.nodes:
            of_results = node.output if written is None or written(node) else ()
            if names := [*(read_names(node) if self.repairs(node) else ()), *of_results]:
                looked_at[node_key(node)] = names
        self.folded.limit(looked_at)
        for before in self.reference.walk(looked_at, partial(progress, action)):
            self._maps = {key: mapped for key, mapped in self._maps.items() if key[0] in self.reference.values}
            after = by_output[node_key(before)]
            self.folded.begin_stage(after)
            deviates = self.deviates(before)
            if deviates:
                self._deviating.update(before.output)
            if self._matches == "all" or (self._matches == "deviating" and deviates):
                match_statistics(self.reference, before)
            if node_key(before) in looked_at or self.reference.runs(before):
                yield before, after
            if self._heals and deviates and not self._is_narrower(before):
                self._deviating.difference_update(before.output)
                self._borrow(before)
            self.folded.release(after)
            if deviates and self.folded.view.scratch is not None:
                memory.give_back()

    def run(self, before: NodeProto, after: NodeProto) -> None:
        """Run a node in both networks."""
        self.reference.run(before)
        self.run_folded(before, after)

    def run_folded(self, before: NodeProto, after: NodeProto) -> None:
        """Run a node in the folded network, after it was run in the reference."""
        if self._heals and not self.deviates(before) and not self._is_narrower(before):
            self._borrow(before)
        else:
            self.folded.run(after)

    def _is_narrower(self, node: NodeProto) -> bool:
        """Whether an output of a node has fewer channels in the fold."""
        values = {name: self.reference.values[name] for name in node.output if name in self.reference.values}
        return any(self.plan.touches(Axis(n, axis)) for n, parts in values.items() for axis in range(parts[0].ndim))

    def _borrow(self, node: NodeProto) -> None:
        """Let the folded network have the reference's values of a node's outputs."""
        for name in node.output:
            if name in self.reference.values:
                self.folded.values[name] = self.reference.values[name]

    def repairs(self, node: NodeProto) -> bool:
        """Whether a repair may change something at a node: a weight that was merged, or statistics."""
        changed = any(name in self._repaired for name in read_names(node))
        return changed or own_statistics(self.reference.view, node) is not None

    def deviates(self, node: NodeProto) -> bool:
        """Whether a node's output differs in the fold by more than a merge of equal channels.

        Elsewhere there is nothing to repair: a repair would only turn rounding into weights.
        """
        return any(name in self._deviating or name in self._changed for name in read_names(node))

    def folded_reference(self, tensor: str, axis: int) -> Sequence[Array] | None:
        """Return the reference's values of a tensor, folded along every axis but one; None where units do not line up.

        Its places along the other axes are then those of the folded network's values.
        """
        values = self.reference.values[tensor]
        others = (other for other in range(values[0].ndim) if other != axis)
        for other in (other for other in others if self.plan.touches(Axis(tensor, other))):
            mapped = self.map(tensor, other)
            if mapped is None:
                return None
            values = [np.moveaxis(mapped.encode_samples(np.moveaxis(part, other, -1)), -1, other) for part in values]
        return values

    def map(self, tensor: str, axis: int) -> AxisMap | None:
        """Return the fold of an activation's axis; None where its groups do not line up."""
        key = (tensor, axis)
        if key not in self._maps:
            width = self.reference.values[tensor][0].shape[axis]
            self._maps[key] = axis_map(self.plan, Axis(tensor, axis), width)
        return self._maps[key]
