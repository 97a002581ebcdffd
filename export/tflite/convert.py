"""Convert a model: prepared graph -> layouts, planned here -> operators -> peepholes -> bytes.

One layout per tensor, chosen to minimise the elements that are transposed.

Tensors that operators tie together (the two sides of an Add, what goes through a Relu) form a cluster with one layout.
Clusters are visited in order, and each takes the layout that costs least next to its neighbours, until none changes:
iterated conditional modes, from two starting points. A tensor costs its number of elements for every layout that is
asked of it beside its own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
from onnx import NodeProto, TensorProto
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from onnxfold.errors import ConfigError, ExportError
from onnxfold.export.tflite import ops as _ops  # noqa: F401  (importing registers the converters)
from onnxfold.export.tflite.context import Converter, Op, Tensors, find_converter
from onnxfold.export.tflite.graph import ELEMENT_TYPES, Graph, Value
from onnxfold.export.tflite.layout import Dynamic, Layout, LayoutRule, NodeShapes, Shape, channels_last, plain
from onnxfold.export.tflite.peepholes import tidy
from onnxfold.export.tflite.serialize import serialize
from onnxfold.graph.nodes import node_key
from onnxfold.graph.view import GraphView


def activation_shapes(view: GraphView) -> dict[str, Shape]:
    """Return the ONNX shapes of all activations that are known; free dimensions are Dynamic."""
    sizes_of: dict[str, tuple[int, ...]] = {}
    for name in view.input_names:
        shape = view.shape(name)
        if shape is None or view.elem_type(name) in (TensorProto.STRING, TensorProto.UNDEFINED):
            raise ExportError(f"input '{name}' is not a numeric tensor of known rank, which TFLite needs")
        if None in shape[1:]:
            text = ",".join("?" if d is None else str(d) for d in shape)
            example = text.replace("?", "1", 1) if shape[0] is None else text
            raise ExportError(
                f"input '{name}' has the shape ({text}), and TFLite needs every size but the batch: give "
                f"--input-shapes {name}:{example}"
            )
        sizes_of[name] = tuple(1 if d is None else d for d in shape)
    types = view.types_for(sizes_of)
    shapes: dict[str, Shape] = {}
    for name in (*view.input_names, *(o for n in view.nodes for o in n.output if o)):
        sizes, free = types[name][1] if name in types else None, view.shape(name)
        if sizes is None or None in sizes:
            continue
        marks = free if free is not None and len(free) == len(sizes) else (None,) * len(sizes)
        pairs = zip(sizes, marks, strict=True)
        shapes[name] = tuple(Dynamic(size or 0) if mark is None else int(size or 0) for size, mark in pairs)
    return shapes


def fix_to_one_sample(view: GraphView) -> None:
    """Write a batch of one into the model where the batch is free."""
    shapes = {}
    for name in view.input_names:
        shape = view.shape(name)
        if shape is None or None in shape[1:]:
            text = "?" if shape is None else ",".join("?" if d is None else str(d) for d in (1, *shape[1:]))
            raise ConfigError(f"input '{name}' has no fixed shape: give --input-shapes {name}:{text}")
        shapes[name] = tuple(1 if d is None else d for d in shape)
    view.fix_input_shapes(shapes)


_MAX_SWEEPS = 20
#: What an operator costs beside its elements.
_OPERATOR = 1000


class _Planner:
    """Finds the layout of every activation."""

    def __init__(
        self, ops: list[tuple[NodeShapes, LayoutRule]], shapes: Mapping[str, Shape], fixed: Mapping[str, Layout]
    ) -> None:
        self._ops, self._shapes, self._fixed = ops, shapes, fixed
        number = {tensor: i for i, tensor in enumerate(shapes)}
        ties = [(number[a], number[b]) for op, rule in ops for a, b in pairwise(rule.ties(op))]
        edges = coo_array((np.ones(len(ties)), np.array(ties, int).reshape(-1, 2).T), shape=(len(shapes),) * 2)
        clusters: dict[int, list[str]] = defaultdict(list)
        for tensor, cluster in zip(shapes, connected_components(edges, directed=False)[1], strict=True):
            clusters[cluster].append(tensor)
        self._readers: dict[str, list[int]] = defaultdict(list)
        for i, (op, _) in enumerate(ops):
            for tensor in (*op.reads, *op.writes):
                self._readers[tensor].append(i)
        self._clusters = [(members, self._offered_layouts(members)) for members in clusters.values()]

    def _offered_layouts(self, members: list[str]) -> list[Layout]:
        rank = len(self._shapes[members[0]])
        layouts = dict.fromkeys((plain(rank), channels_last(rank)))
        for tensor in members:
            for i in self._readers[tensor]:
                op, rule = self._ops[i]
                layouts.update((layout, None) for t, layout in rule.offers(op) if t == tensor)
        return list(layouts)

    def solve(self, start: int) -> tuple[int, dict[str, Layout]]:
        """Return cost and layouts, from the first (0) or the second (1) candidate of every cluster."""
        assigned: dict[str, Layout] = {}
        for members, layouts in self._clusters:
            assigned.update(dict.fromkeys(members, layouts[min(start, len(layouts) - 1)]))
        for _ in range(_MAX_SWEEPS):
            changes = [self._improve(*cluster, assigned) for cluster in self._clusters if len(cluster[1]) > 1]
            if not any(changes):
                break
        return self._cost(self._shapes, assigned), assigned

    def _improve(self, members: list[str], layouts: list[Layout], assigned: dict[str, Layout]) -> bool:
        before = assigned[members[0]]
        # Whatever an operator beside the cluster asks of any tensor may change with the cluster's layout.
        beside = {
            t for m in members for i in self._readers[m] for t in (*self._ops[i][0].reads, *self._ops[i][0].writes)
        }
        costs = []
        for layout in layouts:
            assigned.update(dict.fromkeys(members, layout))
            costs.append((self._cost(beside, assigned), layout != before, layout))
        best = min(costs, key=lambda c: c[:2])[2]
        assigned.update(dict.fromkeys(members, best))
        return best != before

    def _cost(self, tensors: Iterable[str], assigned: Mapping[str, Layout]) -> int:
        wanted = {t: {self._fixed[t]} if t in self._fixed else set() for t in tensors}
        for i in sorted({i for t in wanted for i in self._readers[t]}):
            op, rule = self._ops[i]
            for tensor, layout in rule.demands(op, assigned):
                if tensor in wanted:
                    wanted[tensor].add(layout)
        return sum(len(layouts - {assigned[t]}) * (prod(self._shapes[t]) + _OPERATOR) for t, layouts in wanted.items())


#: Operators that are constants once the inputs' sizes are.
_OF_SIZES = frozenset({"Shape", "Size", "ConstantOfShape", "Range"})
_MOST_ELEMENTS = 2**31 - 1


class Ports(NamedTuple):
    """The layouts of a file's inputs and outputs, by name and in its order."""

    inputs: dict[str, Layout]
    outputs: dict[str, Layout]


@dataclass(frozen=True)
class Converted:
    """A converted graph and how its interface maps to ONNX's."""

    graph: Graph
    ports: Ports

    @property
    def operators(self) -> dict[str, int]:
        """Number of operators of each kind."""
        return dict(Counter(op.code for op in self.graph.operators).most_common())

    def to_bytes(self, description: str) -> memoryview:
        """Return the file's content; the metadata states layouts and names."""
        layouts = {
            kind: {name: {"layout": layout.name(), "axes": list(layout.perm)} for name, layout in side.items()}
            for kind, side in self.ports._asdict().items()
        }
        return serialize(self.graph, description, layouts)


def convert(view: GraphView, *, keep_nchw_inputs: bool = False) -> Converted:
    """Convert a prepared model."""
    shapes = activation_shapes(view)
    for name, shape in shapes.items():
        if prod(shape) > _MOST_ELEMENTS or max(shape, default=0) > _MOST_ELEMENTS:
            raise ExportError(f"tensor '{name}' of the shape {list(shape)} is too large for TFLite")
    nodes = [(node, _converter(view, node)) for node in view.nodes]
    known = [
        (NodeShapes(view, node, shapes), converter.layouts)
        for node, converter in nodes
        if all(name in shapes for name in node.output if name) and any(name in shapes for name in node.input)
    ]
    fixed = {name: plain(len(shapes[name])) for name in view.input_names if keep_nchw_inputs}
    planner = _Planner(known, shapes, fixed)
    layouts = min((planner.solve(start) for start in (0, 1)), key=lambda solution: solution[0])[1]
    layouts |= {name: layouts[name].unflattened for name in view.output_names if name in shapes}
    tensors = Tensors(view, shapes, layouts)
    inputs = {name: fixed.get(name) or layouts[name].unflattened for name in view.input_names}
    for name, layout in inputs.items():
        _add_input(tensors, name, layout)
    for node, converter in nodes:
        op = Op(node, tensors, converter.layouts)
        try:
            output = converter.write(op)
        except OverflowError:
            op.refuse("one of its numbers does not fit into 32 bits, the size of TFLite's pads and strides")
        if output is not None:
            op.write(output)
    _write_outputs(tensors, view.output_names)
    tidy(tensors.graph)
    outputs = {n: layouts[n] if n in layouts else plain(len(view.shape(n) or ())) for n in view.output_names}
    return Converted(tensors.graph, Ports(inputs, outputs))


def _converter(view: GraphView, node: NodeProto) -> Converter:
    converter = find_converter(node.domain, node.op_type, view.opset(node.domain))
    if converter is None:
        hint = "it computes with tensor sizes: fix them with --input-shapes" if node.op_type in _OF_SIZES else ""
        reason = f"no converter exists for this operator; {hint or '--backend onnx2tf may have one'}"
        raise ExportError(reason, node=node.name or node_key(node), op_type=node.op_type)
    return converter


def _add_input(tensors: Tensors, name: str, layout: Layout) -> None:
    number = tensors.view.elem_type(name)
    if number not in ELEMENT_TYPES:
        raise ExportError(f"input '{name}' has an element type that TFLite does not have")
    value = Value(layout.shape(tensors.shapes[name]), ELEMENT_TYPES[number], name)
    tensors.name(value, name)
    tensors.put(name, value, layout)
    tensors.graph.inputs.append(value)


def _write_outputs(tensors: Tensors, names: Iterable[str]) -> None:
    """Make every output a separate tensor, different from inputs, constants and other outputs."""
    graph = tensors.graph
    used = {*graph.inputs}
    for name in names:
        if tensors.view.is_weight(name):
            value = graph.constant(tensors.view.weight(name), name)
        else:
            value = tensors.get(name, tensors.layouts[name])
        if value.is_constant or value in used:
            value = graph.copy(value, value.shape)
        value.name = name
        used.add(value)
        graph.outputs.append(value)
