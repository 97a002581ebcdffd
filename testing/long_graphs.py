"""Graphs of a given number of nodes on a narrow, small image.

Weights are close to permutations: activations neither die nor grow, however deep the graph is.
"""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

_WIDTH, _SIZE = 4, 4


class _Graph:
    """Nodes and weights of one graph on an image."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.random = np.random.default_rng(0)

    def weight(self, rows: int, columns: int, scale: float = 1.0, name: str = "") -> str:
        """Return a weight of shape (rows, columns, 1, 1) that mixes little."""
        values = 1e-3 * self.random.standard_normal((rows, columns, 1, 1))
        values[np.arange(rows), self.random.permutation(max(rows, columns))[:rows] % columns] += 1.0
        name = name or f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array((scale * values).astype(np.float32), name))
        return name

    def node(self, op_type: str, *inputs: str, **attributes: object) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def conv(self, x: str, inputs: int = _WIDTH, scale: float = 1.0) -> str:
        return self.node("Conv", x, self.weight(_WIDTH, inputs, scale))

    def model(self, y: str) -> onnx.ModelProto:
        pooled = self.node("GlobalAveragePool", self.node("Conv", y, self.weight(3, _WIDTH)))
        self.nodes.append(helper.make_node("Flatten", [pooled], ["y"], "head"))
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, _SIZE, _SIZE])
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
        graph = helper.make_graph(self.nodes, "graph", [x], [out], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def relu(nodes: int) -> onnx.ModelProto:
    """A chain of Relu between two convolutions."""
    g = _Graph()
    h = g.conv("x", 3)
    while len(g.nodes) < nodes - 4:
        h = g.node("Relu", h)
    return g.model(g.conv(h))


def conv(nodes: int) -> onnx.ModelProto:
    """A chain of Conv and Relu."""
    g = _Graph()
    h = g.conv("x", 3)
    while len(g.nodes) < nodes - 4:
        h = g.conv(g.node("Relu", h))
    return g.model(h)


def residual(nodes: int) -> onnx.ModelProto:
    """Residual blocks: one stream that every block reads and adds to."""
    g = _Graph()
    h = g.conv("x", 3)
    while len(g.nodes) < nodes - 7:
        h = g.node("Add", h, g.conv(g.node("Relu", g.conv(h)), scale=4 / nodes))
    return g.model(h)


def fan(nodes: int) -> onnx.ModelProto:
    """One tensor that many convolutions read; their results are added up."""
    g = _Graph()
    wide = g.node("Relu", g.conv("x", 3))
    total = g.conv(wide)
    while len(g.nodes) < nodes - 4:
        total = g.node("Add", total, g.conv(wide, scale=2 / nodes))
    return g.model(total)


def bodies(nodes: int) -> onnx.ModelProto:
    """If nodes along one stream, two convolutions in each branch; their results are added to it."""
    g = _Graph()
    h = g.conv("x", 3)
    yes = g.node("Greater", g.node("ReduceMax", "x", keepdims=0), g.node("ReduceMin", "x", keepdims=0))
    count = 0
    while len(g.nodes) + count < nodes - 9:
        branches = {}
        for key in ("then_branch", "else_branch"):
            inner, prefix = _Graph(), f"b{count}_{key[0]}"
            inner.random = g.random
            # Bodies are folded without being run: in a chain of them, what every fold gains or loses would multiply.
            names = [inner.weight(_WIDTH, _WIDTH, s, f"{prefix}_w{i}") for i, s in enumerate((1.0, 4 / nodes))]
            parts = [("Conv", [h, names[0]]), ("Relu", [f"{prefix}_0"]), ("Conv", [f"{prefix}_1", names[1]])]
            inner.nodes = [
                helper.make_node(op, inputs, [f"{prefix}_{i}"], f"{prefix}_{i}") for i, (op, inputs) in enumerate(parts)
            ]
            shape = ["n", _WIDTH, _SIZE, _SIZE]
            out = helper.make_tensor_value_info(f"{prefix}_2", TensorProto.FLOAT, shape)
            branches[key] = helper.make_graph(inner.nodes, prefix, [], [out], inner.weights)
        h = g.node("Add", h, g.node("If", yes, **branches))
        count += 6
    return g.model(g.conv(h))


GRAPHS: dict[str, Callable[[int], onnx.ModelProto]] = {f.__name__: f for f in (relu, conv, residual, fan, bodies)}
