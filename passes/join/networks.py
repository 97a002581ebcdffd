"""Networks are opened and brought into forms that correspond: one operator set, one way to write a layer.

Where they were joined, convolutions that read equal blocks of channels leave out the zeros between the blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, version_converter

from onnxfold.channels import find_groups
from onnxfold.channels.layers import linear
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.nodes import DEFAULT_DOMAINS, attr_int, attr_ints, node_key, rewritten
from onnxfold.graph.patterns import Match as PatternMatch
from onnxfold.graph.patterns import Mismatch, Op
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult, Pipeline, Rewrite
from onnxfold.passes.fusion.fuse_batch_norm import FuseBatchNorm
from onnxfold.passes.join.join import match_networks
from onnxfold.passes.join.structure import LayoutError, Match, SourceNetwork
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.passes.normalize.unneeded import RemoveUnused


@dataclass(frozen=True)
class ViewsToFlatten(Rewrite):
    """Write a Reshape or Squeeze that only joins all axes behind the batch as a Flatten."""

    patterns = (Op("Reshape|Squeeze"),)

    def replace(self, view: GraphView, match: PatternMatch) -> list[NodeProto]:
        """Return the Flatten."""
        (node,) = match.nodes
        before, after = view.shape(node.input[0]) or (), view.shape(node.output[0]) or ()
        if len(after) != 2 or len(before) < 2 or None in before[1:] or after[1] != prod(d or 0 for d in before[1:]):
            raise Mismatch("it does not join all axes behind the batch")
        flat = helper.make_node("Flatten", node.input[:1], node.output, name=node.name)
        return [rewritten(flat, attributes={"axis": 1})]


@dataclass(frozen=True)
class MeansToPooling(Rewrite):
    """Write a ReduceMean over all axes behind the channels as a GlobalAveragePool, and a Flatten if they vanish."""

    patterns = (Op("ReduceMean"),)

    def replace(self, view: GraphView, match: PatternMatch) -> list[NodeProto]:
        """Return the pooling, and what drops the axes of one position."""
        (node,) = match.nodes
        rank = len(view.shape(node.input[0]) or ())
        if rank < 3 or _axes(view, node, rank) != set(range(2, rank)):
            raise Mismatch("it does not reduce all axes behind the channels")
        if attr_int(node, "keepdims", 1):
            return [helper.make_node("GlobalAveragePool", node.input[:1], node.output, name=node.name)]
        pooled = view.fresh_name(f"{node.output[0]}_pooled")
        return [
            helper.make_node("GlobalAveragePool", node.input[:1], [pooled], name=node.name),
            helper.make_node("Flatten", [pooled], node.output, name=f"{node.name}_flat", axis=1),
        ]


def _axes(view: GraphView, node: NodeProto, rank: int) -> set[int]:
    """Return the axes that a ReduceMean with constant axes reduces; none where they are not known."""
    axes = attr_ints(node, "axes")
    if len(node.input) > 1 and node.input[1]:
        axes = view.weight(node.input[1]).reshape(-1).tolist() if view.is_weight(node.input[1]) else []
    return {int(axis) % rank for axis in axes}


#: Behind the normal form, for networks that are compared with each other.
COMMON_FORM = Pipeline((MeansToPooling(), ViewsToFlatten()))


def names_of(models: Sequence[ModelLike]) -> list[str]:
    """Return the names of models in messages: their files, or their numbers."""
    return [
        f"model {i + 1}" if isinstance(model, ModelProto) else f"'{Path(model).name}'" for i, model in enumerate(models)
    ]


def open_networks(
    models: Sequence[ModelLike], input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[list[SourceNetwork], list[Match], tuple[str, ...]]:
    """Open networks, and match them to the first one."""
    names = names_of(models)
    views = [load(model) for model in models]
    if input_shapes:
        views = [_assume_shapes(view, views[0], input_shapes) for view in views]
    views, notes = _one_opset(views, names)
    for view in views:
        NORMALIZE(view)
    has_norms = [any(node.op_type == "BatchNormalization" for node in view.nodes) for view in views]
    if len(set(has_norms)) > 1:
        for view in views:
            FuseBatchNorm()(view)
            RemoveUnused()(view)
        notes = (*notes, "BatchNormalizations were merged into their layers: not all of the networks have them")
    try:
        return (*_corresponding(views, names), notes)
    except LayoutError:
        changed = [COMMON_FORM(view).modified for view in views]
        if not any(changed):
            raise
        return (*_corresponding(views, names), notes)


def _assume_shapes(view: GraphView, first: GraphView, shapes: Mapping[str, Sequence[int]]) -> GraphView:
    places = dict(zip(first.input_names, view.input_names, strict=False))
    view.assume({places.get(name, name): tuple(shape) for name, shape in shapes.items()})
    return view


def _one_opset(views: Sequence[GraphView], names: Sequence[str]) -> tuple[list[GraphView], tuple[str, ...]]:
    """Convert networks of an older operator set to the newest one among them."""
    newest = max(view.opset() for view in views)
    newest_views, notes = [], []
    for view, name in zip(views, names, strict=True):
        old = view.opset()
        if old == newest:
            newest_views.append(view)
            continue
        try:
            converted = version_converter.convert_version(to_model(view), newest)
            onnx.checker.check_model(converted)
        except Exception as error:  # the converter raises what its C++ code raises
            text = " ".join(str(error).split())[:200]
            raise LayoutError(
                f"{name} has operator set {old}, and another network {newest}; it cannot be converted: {text}"
            ) from None
        made = load(converted)
        made.assume(dict(view.input_shapes))
        newest_views.append(made)
        notes.append(f"{name} was converted from operator set {old} to {newest}")
    return newest_views, tuple(notes)


def _corresponding(views: Sequence[GraphView], names: Sequence[str]) -> tuple[list[SourceNetwork], list[Match]]:
    networks = [SourceNetwork(name, view, find_groups(view)) for name, view in zip(names, views, strict=True)]
    matches = match_networks(networks)
    lacking = {(i if which else 0, key) for i, m in enumerate(matches) for which, key in m.lacks_bias}
    if not lacking:
        return networks, matches
    for i, key in sorted(lacking):
        _give_bias(views[i], key)
    networks = [SourceNetwork(name, view, find_groups(view)) for name, view in zip(names, views, strict=True)]
    return networks, match_networks(networks)


def _give_bias(view: GraphView, key: str) -> None:
    """Add zeros where counterparts of a layer add a bias."""
    node = view.producer(key)
    operator = None if node is None else linear(view, node)
    assert node is not None
    assert operator is not None
    assert operator.rows is not None
    weight = view.weights[operator.weight]
    dtype = view.weight(operator.weight).dtype
    zeros = np.zeros(weight.shape[operator.rows.axis] * operator.rows.blocks, dtype)
    view.fill_input(node, operator.bias.number, view.add_weight(f"{key}_bias", zeros))


@dataclass(frozen=True)
class BlocksToGroups(Pass):
    """Leave out the zeros of a convolution that reads its channels in equal blocks.

    Case 1: one group, and all weights between the j-th of `parts` equal parts of the outputs and another part than the
    j-th of the inputs are zero. Weights that several nodes read stay.
    """

    parts: int  # number of parts: of networks beside each other

    def run(self, view: GraphView) -> PassResult:
        """Rewrite all there are."""
        made: dict[str, NodeProto] = {}
        for node in view.nodes:
            if node.op_type != "Conv" or node.domain not in DEFAULT_DOMAINS or attr_int(node, "group", 1) != 1:
                continue
            weight = node.input[1]
            if not view.is_weight(weight) or len(view.consumers(weight)) > 1:
                continue
            blocks = self._blocks(view.weight(weight))
            if blocks is not None:
                view.set_weight(weight, blocks)
                made[node_key(node)] = rewritten(node, attributes={"group": self.parts})
        changed = view.substitute(made)
        if changed:
            view.drop_inferable_infos()
        return PassResult(changed)

    def _blocks(self, values: Array) -> Array | None:
        """Return the blocks, one below the other; None where there is anything outside of them."""
        outputs, inputs = values.shape[:2]
        if self.parts < 2 or outputs % self.parts or inputs % self.parts:
            return None
        cut = values.reshape(self.parts, outputs // self.parts, self.parts, inputs // self.parts, *values.shape[2:])
        inside = [cut[j, :, j] for j in range(self.parts)]
        if any(np.any(cut[j, :, i]) for j in range(self.parts) for i in range(self.parts) if i != j):
            return None
        return np.concatenate(inside)
