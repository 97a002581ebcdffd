"""Join networks of one layout into a single graph that computes what each of them computes.

Networks are opened and brought into forms that correspond first: one operator set, one way to write a layer. Where they
were joined, convolutions that read equal blocks of channels leave out the zeros between the blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, version_converter

from onnxfold.channels import find_groups
from onnxfold.channels.declarations import Axis, Count, Role, Select
from onnxfold.channels.layers import layer_of
from onnxfold.errors import ConfigError
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.nodes import attr_int, attr_ints, node_key, rewritten, subgraphs, with_input
from onnxfold.graph.patterns import Match as PatternMatch
from onnxfold.graph.patterns import Mismatch, Op
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import PassResult, Pipeline, Rewrite
from onnxfold.passes.fusion.fuse_batch_norm import FuseBatchNorm
from onnxfold.passes.join.stacked_axes import Index, StackedAxes
from onnxfold.passes.join.structure import LayoutError, Match, SourceNetwork, join_heads, match
from onnxfold.passes.merge.fold_channels import with_count
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.passes.normalize.unneeded import RemoveUnused

#: So many networks may be merged whatever they cost.
_FEW = 8
#: Highest sum of the cubes of the widths of all groups, of more networks beside each other: some minutes on two cores.
_MOST_WORK = 1e10


class ViewsToFlatten(Rewrite):
    """Write a Reshape or Squeeze that only joins all axes behind the batch as a Flatten."""

    patterns = (Op("Reshape|Squeeze"),)

    def replace(self, view: GraphView, match: PatternMatch) -> list[NodeProto]:
        """Return the Flatten."""
        (node,) = match.nodes
        before, after = view.shape(node.input[0]) or (), view.shape(node.output[0]) or ()
        if len(after) != 2 or len(before) < 2 or None in before[1:] or after[1] != prod(d or 0 for d in before[1:]):
            raise Mismatch("it does not join all axes behind the batch")
        return [helper.make_node("Flatten", node.input[:1], node.output, name=node.name, axis=1)]


class MeansToPooling(Rewrite):
    """Write a ReduceMean over all axes behind the channels as a GlobalAveragePool, and a Flatten if they vanish."""

    patterns = (Op("ReduceMean"),)

    def replace(self, view: GraphView, match: PatternMatch) -> list[NodeProto]:
        """Return the pooling, and what drops the axes of one position."""
        (node,) = match.nodes
        rank = len(view.shape(node.input[0]) or ())
        if rank < 3 or _axes(view, node, rank) != set(range(2, rank)):
            raise Mismatch("it does not reduce all axes behind the channels")
        keeps = attr_int(node, "keepdims", 1)
        pooled = node.output[0] if keeps else view.fresh_name(f"{node.output[0]}_pooled")
        flatten = helper.make_node("Flatten", [pooled], node.output, name=f"{node.name}_flat", axis=1)
        pool = helper.make_node("GlobalAveragePool", node.input[:1], [pooled], name=node.name)
        return [pool] if keeps else [pool, flatten]


def _axes(view: GraphView, node: NodeProto, rank: int) -> set[int]:
    """Return the axes that a ReduceMean with constant axes reduces; none where they are not known."""
    axes = attr_ints(node, "axes")
    if len(node.input) > 1 and node.input[1]:
        axes = view.weight(node.input[1]).reshape(-1).tolist() if view.is_weight(node.input[1]) else []
    return {int(axis) % rank for axis in axes}


#: Behind the normal form, for networks that are compared with each other.
COMMON_FORM = Pipeline((MeansToPooling(), ViewsToFlatten()))


def open_networks(
    models: Sequence[ModelLike], input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[list[SourceNetwork], list[Match], tuple[str, ...]]:
    """Open networks, and match them to the first one."""
    names = [f"model {i + 1}" if isinstance(m, ModelProto) else f"'{Path(m).name}'" for i, m in enumerate(models)]
    first = load(models[0])
    _require_few(first, len(models))
    views = [first, *map(load, models[1:])]
    for view in views if input_shapes else ():
        places = dict(zip(first.input_names, view.input_names, strict=False))
        view.assume({places.get(name, name): tuple(shape) for name, shape in (input_shapes or {}).items()})
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


def _require_few(first: GraphView, count: int) -> None:
    """Refuse so many networks that their channels beside each other, whose moments are of all pairs, take hours."""
    if count <= _FEW:
        return
    groups = find_groups(first).groups
    most = max(_FEW, int((_MOST_WORK / max(sum(group.size**3 for group in groups), 1)) ** (1 / 3)))
    if count > most:
        widest = max(group.size for group in groups)
        raise ConfigError(
            f"{count} networks are too many: the work grows with the cube of their number, and of networks with groups "
            f"of up to {widest:,} channels {most} can be merged at once; merge equal parts, then the results"
        )


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
    # The first network's own match is that of every tensor with itself.
    own = Match({name: name for name in views[0].weights})
    matches = [own, *(match(networks[0], other) for other in networks[1:])]
    lacking = {(i if which else 0, key) for i, m in enumerate(matches) for which, key in m.lacks_bias}
    for view, key in ((views[i], key) for i, key in sorted(lacking)):  # counterparts of a layer add a bias: add zeros
        layer = layer_of(view, view.producer(key))
        assert layer is not None
        zeros = np.zeros(layer.width(view), view.weight(layer.rows.tensor).dtype)
        view.fill_input(layer.node, layer.operator.bias.number, view.add_weight(f"{key}_bias", zeros))
    return _corresponding(views, names) if lacking else (networks, matches)


@dataclass(frozen=True)
class BlocksToGroups(Rewrite):
    """Leave out the zeros of a convolution that reads its channels in equal blocks.

    Case 1: one group, and all weights between the j-th of `parts` equal parts of the outputs and another part than the
    j-th of the inputs are zero. Weights that several nodes read stay.
    """

    parts: int  # number of parts: of networks beside each other
    patterns = (Op("Conv"),)

    def replace(self, view: GraphView, match: PatternMatch) -> list[NodeProto]:
        """Return the convolution in groups, whose weight has the blocks one below the other."""
        (node,), parts = match.nodes, self.parts
        weight = node.input[1]
        if attr_int(node, "group", 1) != 1 or not view.is_weight(weight) or len(view.consumers(weight)) > 1:
            raise Mismatch("it has groups, or no weight of its own")
        values = view.weight(weight)
        outputs, inputs = values.shape[:2]
        if parts < 2 or outputs % parts or inputs % parts:
            raise Mismatch(f"its channels cannot be cut into {parts} parts")
        cut = values.reshape(parts, outputs // parts, parts, inputs // parts, *values.shape[2:])
        if any(np.any(cut[j, :, i]) for j in range(parts) for i in range(parts) if i != j):
            raise Mismatch("it reads other blocks, too")
        view.set_weight(weight, np.concatenate([cut[j, :, j] for j in range(parts)]))
        return [rewritten(node, attributes={"group": parts})]

    def run(self, view: GraphView) -> PassResult:
        """Rewrite all there are."""
        done = super().run(view)
        if done.modified:
            view.drop_inferable_infos()
        return done


@dataclass(frozen=True, eq=False)
class JoinedGraph:
    """Networks as one graph."""

    #: The graph. Weights between channels of several networks are written whole, with zeros, so that any of these
    #: channels may become one.
    view: GraphView
    owners: Mapping[Axis, Index]  # the network that every position of a weight's axis belongs to; -1: all
    heads: tuple[str, ...]  # how every output of the networks was joined: 'join', 'average' or 'first'


def join(networks: Sequence[SourceNetwork], matches: Sequence[Match], heads: str) -> JoinedGraph:
    """Stack what produces channels, put what consumes them into blocks, and join the heads.

    Case 1: a node whose result holds channels becomes one node. Case 2: one that computes the same in all networks
    stays one. Case 3: what is behind the last channels, the heads, stays apart, each reading its network's channels.
    """
    for network in networks:
        for node in network.view.nodes:
            if any(True for _ in subgraphs(node)):
                raise LayoutError(f"{network.label(node)} has bodies, and such networks are not joined")
    return _Join(networks, StackedAxes(networks, matches), networks[0].view.copy()).run(heads)


@dataclass(eq=False)
class _Join:
    networks: Sequence[SourceNetwork]
    axes: StackedAxes
    view: GraphView
    nodes: list[NodeProto] = field(default_factory=list)
    #: Tensors that every network has one of, by the first one's name.
    apart: dict[str, list[str]] = field(default_factory=dict)
    owners: dict[Axis, Index] = field(default_factory=dict)

    def run(self, heads: str) -> JoinedGraph:
        first = self.networks[0].view
        for node in first.nodes:
            if any(name in self.axes.grouped for name in node.output if name):
                self._stack(node)
            elif self._is_shared(node):
                self.nodes.append(node)
            else:
                self._split_node(node)
        outputs = {name: self.apart[name] for name in first.output_names if name in self.apart}
        if not outputs:
            raise LayoutError("the networks compute the same, without a weight that differs: there is nothing to merge")
        nodes, sizes, how = join_heads(self.view, self.nodes, outputs, heads)
        self.view.replace_nodes(nodes)
        self.view.resize(sizes)
        self.view.drop_inferable_infos()
        RemoveUnused()(self.view)
        return JoinedGraph(self.view, self.owners, how)

    def _refuse(self, node: NodeProto, why: str) -> LayoutError:
        partners = [n.view.producer(self.axes.name(i, node_key(node))) for i, n in enumerate(self.networks)]
        names = [n.label(partner) for n, partner in zip(self.networks, partners, strict=True) if partner is not None]
        return LayoutError(f"{' and '.join(names)} cannot be stacked: {why}")

    def _is_weight(self, name: str) -> bool:
        return self.networks[0].view.is_weight(name)

    def _stack(self, node: NodeProto) -> None:
        """Case 1."""
        key, analysis = node_key(node), self.networks[0].analysis
        places = {index for owner, index in self.networks[0].width_counts if owner == key}
        counted = [name for i, name in enumerate(node.input) if i in places]
        for name in node.input:
            if name in self.apart:
                raise self._refuse(node, f"what it reads, '{name}', holds channels that cannot be merged")
        for name in node.input:
            if name and self._is_weight(name) and name in self.axes.grouped:
                self.view.put_weights({name: self.axes.weight(name)})
                for axis in self.axes.grouped[name]:
                    self.owners[axis] = self.axes.axis(axis).owners
            elif name and self._is_weight(name) and name not in counted and not self._is_equal(name):
                raise self._refuse(node, f"the constant '{name}' is not the same in all of them")
        for count in [c for c in analysis.counts if c.node == key]:
            node = self._update_count(node, count)
        for select in [s for s in analysis.selects if s.node == key]:
            node = self._update_selection(node, select)
        self.nodes.append(node)

    def _is_equal(self, name: str) -> bool:
        values = [n.view.weight(self.axes.name(i, name)) for i, n in enumerate(self.networks)]
        return all(np.array_equal(values[0], other) for other in values[1:])

    def _update_count(self, node: NodeProto, count: Count) -> NodeProto:
        old = [self._old_count(i, node, count) for i in range(len(self.networks))]
        places = self.axes.axis(count.axis)
        kept = np.unique(np.concatenate([positions[a:b] for positions, (a, b) in zip(places.places, old, strict=True)]))
        return with_count(self.view, node, count, len(kept) // count.each, f"{node_key(node)}_count")

    def _old_count(self, network: int, node: NodeProto, count: Count) -> tuple[int, int]:
        """Return the positions that a number of a network counts."""
        if network == 0:
            return count.start, count.stop
        number = (self.axes.name(network, count.node), count.place, count.element)
        theirs = [c for c in self.networks[network].analysis.counts if (c.node, c.place, c.element) == number]
        if not theirs:
            raise self._refuse(node, "its number of channels is stated in another way")
        return theirs[0].start, theirs[0].stop

    def _update_selection(self, node: NodeProto, select: Select) -> NodeProto:
        target, source = self.axes.axis(select.axis), self.axes.axis(select.source)
        first = self.networks[0].view.weight(node.input[select.input_index])
        values = np.zeros(target.length, first.dtype)
        for i, network in enumerate(self.networks):
            chosen = network.view.weight(self.axes.name(i, node.input[select.input_index])).reshape(-1)
            values[target.places[i]] = source.places[i][chosen % len(source.places[i])]
        return with_input(node, select.input_index, self.view.add_weight(f"{node_key(node)}_indices", values))

    def _is_shared(self, node: NodeProto) -> bool:
        """Case 2: nothing that it reads differs."""
        names = [name for name in node.input if name]
        if any(name in self.apart for name in names):
            return False
        weights = [name for name in names if self._is_weight(name)]
        return all(name not in self.axes.grouped and self._is_equal(name) for name in weights)

    def _split_node(self, node: NodeProto) -> None:
        """Case 3."""
        for i in range(len(self.networks)):
            inputs = []
            for name in node.input:
                if name in self.apart:
                    inputs.append(self.apart[name][i])
                elif not name or not self._is_weight(name):
                    inputs.append(name)
                elif name in self.axes.grouped:
                    if any(self.axes.roles.get(axis) is not Role.CONSUMER for axis in self.axes.grouped[name]):
                        raise self._refuse(node, f"it mixes channels of '{name}', and its result has none")
                    inputs.append(self.view.add_weight(f"{name}_of_{i + 1}", self.axes.weight(name, only=i)))
                    for axis in self.axes.grouped[name]:
                        self.owners[Axis(inputs[-1], axis.axis, axis.blocks)] = self.axes.axis(axis).owners
                else:
                    own = self.networks[i].view.weight(self.axes.name(i, name))
                    inputs.append(self.view.add_weight(f"{name}_of_{i + 1}", own))
            outputs = [name and self.view.fresh_name(f"{name}_of_{i + 1}") for name in node.output]
            made = rewritten(node, inputs=inputs, outputs=outputs)
            made.name = node.name and f"{node.name}_of_{i + 1}"
            self.nodes.append(made)
            for old, new in zip(node.output, outputs, strict=True):
                if old:
                    self.apart.setdefault(old, []).append(new)
