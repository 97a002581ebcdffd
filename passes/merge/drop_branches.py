"""Drop residual branches: the stream goes on without them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import NodeProto, helper

from onnxfold.graph.bodies import change_interface
from onnxfold.graph.nodes import attr_float, node_key
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import SUM, SUM_AND_NORM
from onnxfold.language.residual_branches import ResidualBranch
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.normalize.unneeded import EliminateIdentity, RemoveUnused

#: Epsilon of the norms that add, where it is not written.
_EPSILON = 1e-12


@dataclass(frozen=True)
class DropBranches(Pass):
    """Remove branches with their weights, and inputs and outputs that they alone use.

    A norm that adds before it norms becomes a norm.
    """

    branches: tuple[ResidualBranch, ...]
    caches: frozenset[str] = frozenset()  # inputs and outputs that go with it
    #: New names of inputs and outputs that stay, by their old ones.
    names: Mapping[str, str] = field(default_factory=dict)

    def run(self, view: GraphView) -> PassResult:
        """Let the stream pass, then remove what nothing reads any more."""
        dropped = {branch.join: branch for branch in self.branches}
        joins = [node for node in view.nodes if node_key(node) in dropped]
        if not view.expand({node_key(join): _replacement(join, dropped[node_key(join)]) for join in joins}):
            return PassResult(modified=False)
        change_interface(view, [name for name in self.caches if name in view.output_names], {})
        EliminateIdentity()(view)
        RemoveUnused()(view)
        change_interface(view, self.caches, self.names)
        return PassResult(modified=True)


def inputs_without(join: NodeProto, branch: ResidualBranch) -> list[str]:
    """Return the inputs of a node that adds a branch, without the branch."""
    others = SUM_AND_NORM[join.op_type][1] if join.op_type in SUM_AND_NORM else ()
    return [branch.stream, *(join.input[i] for i in others if i < len(join.input))]


def _replacement(join: NodeProto, branch: ResidualBranch) -> list[NodeProto]:
    if join.op_type not in SUM_AND_NORM:
        return [helper.make_node("Identity", [branch.stream], [join.output[0]], name=join.name)]
    op_type, inputs = SUM_AND_NORM[join.op_type][0], inputs_without(join, branch)
    epsilon = attr_float(join, "epsilon", _EPSILON)
    norm = helper.make_node(op_type, inputs, [join.output[0]], name=join.name, axis=-1, epsilon=epsilon)
    sums = [name for name in join.output[SUM : SUM + 1] if name]
    return [*(helper.make_node("Identity", [branch.stream], [name]) for name in sums), norm]
