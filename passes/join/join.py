"""Join networks of one layout into a single graph that computes what each of them computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto

from onnxfold.channels.declarations import Axis, Count, Role, Select
from onnxfold.graph.nodes import node_key, rewritten, subgraphs, with_input
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.passes.join.stacked_axes import Index, StackedAxes
from onnxfold.passes.join.structure import JoinedHeads, LayoutError, Match, SourceNetwork, join_heads, match
from onnxfold.passes.merge.fold_channels import with_count
from onnxfold.passes.normalize.unneeded import RemoveUnused


@dataclass(frozen=True, eq=False)
class JoinedGraph:
    """Networks as one graph."""

    #: The graph. Weights between channels of several networks are written whole, with zeros, so that any of these
    #: channels may become one.
    view: GraphView
    owners: Mapping[Axis, Index]  # the network that every position of a weight's axis belongs to; -1: all
    heads: tuple[str, ...]  # how every output of the networks was joined: 'join', 'average' or 'first'


def match_networks(networks: Sequence[SourceNetwork]) -> list[Match]:
    """Match all networks to the first one."""
    names = {name: name for name in networks[0].view.weights}
    return [Match(names), *(match(networks[0], other) for other in networks[1:])]


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
        joined: JoinedHeads = join_heads(self.view, self.nodes, outputs, heads)
        self.view.replace_nodes(joined.nodes)
        self.view.resize(joined.sizes)
        self.view.drop_inferable_infos()
        RemoveUnused()(self.view)
        return JoinedGraph(self.view, self.owners, joined.how)

    def _partners(self, node: NodeProto) -> list[tuple[SourceNetwork, NodeProto]]:
        partners = []
        for i, network in enumerate(self.networks):
            partner = network.view.producer(self.axes.name(i, node_key(node)))
            assert partner is not None
            partners.append((network, partner))
        return partners

    def _refuse(self, node: NodeProto, why: str) -> LayoutError:
        names = " and ".join(network.label(partner) for network, partner in self._partners(node))
        return LayoutError(f"{names} cannot be stacked: {why}")

    def _is_weight(self, name: str) -> bool:
        return self.networks[0].view.is_weight(name)

    def _stack(self, node: NodeProto) -> None:
        """Case 1."""
        key, analysis = node_key(node), self.networks[0].analysis
        for name in node.input:
            if name in self.apart:
                raise self._refuse(node, f"what it reads, '{name}', holds channels that cannot be merged")
        for name in node.input:
            if name and self._is_weight(name) and name in self.axes.grouped:
                self.view.put_weights({name: self.axes.weight(name)})
                for axis in self.axes.grouped[name]:
                    self.owners[axis] = self.axes.axis(axis).owners
            elif name and self._is_weight(name) and not self._is_counted(node, name) and not self._is_equal(name):
                raise self._refuse(node, f"the constant '{name}' is not the same in all of them")
        for count in [c for c in analysis.counts if c.node == key]:
            node = self._update_count(node, count)
        for select in [s for s in analysis.selects if s.node == key]:
            node = self._update_selection(node, select)
        self.nodes.append(node)

    def _is_counted(self, node: NodeProto, name: str) -> bool:
        places = {index for key, index in self.networks[0].width_counts if key == node_key(node)}
        return list(node.input).index(name) in places

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
        key = self.axes.name(network, count.node)
        same = [c for c in self.networks[0].analysis.counts if (c.node, c.axis) == (count.node, count.axis)]
        theirs = [
            c for c in self.networks[network].analysis.counts
            if (c.node, c.attribute, c.input_index, c.element)
            == (key, count.attribute, count.input_index, count.element)
        ]  # fmt: skip
        if not theirs or not same:
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
                    inputs.append(self._add_own_weight(name, i, self.axes.weight(name, only=i)))
                    for axis in self.axes.grouped[name]:
                        self.owners[Axis(inputs[-1], axis.axis, axis.blocks)] = self.axes.axis(axis).owners
                else:
                    inputs.append(self._add_own_weight(name, i, self.networks[i].view.weight(self.axes.name(i, name))))
            outputs = [name and self.view.fresh_name(f"{name}_of_{i + 1}") for name in node.output]
            made = rewritten(node, inputs=inputs, outputs=outputs)
            made.name = node.name and f"{node.name}_of_{i + 1}"
            self.nodes.append(made)
            for old, new in zip(node.output, outputs, strict=True):
                if old:
                    self.apart.setdefault(old, []).append(new)

    def _add_own_weight(self, name: str, network: int, values: Array) -> str:
        """Return the name of a network's own form of a weight."""
        return self.view.add_weight(f"{name}_of_{network + 1}", values)
