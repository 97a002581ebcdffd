"""A graph under construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from testing.random_graphs.common import UNKNOWN_TO_ONNX, Array, DoesNotFitError, Shape
from testing.random_graphs.drawing import Drawing


class Mark(NamedTuple):
    """How far a graph was built."""

    nodes: int
    initializers: int
    pool: int
    inputs: int
    zero_biases: dict[Shape, str]


class Graph(Drawing):
    """Nodes, constants and inputs of a graph under construction.

    The axis of the batch comes first in every tensor and is left out of the tracked shapes.

    Parameters
    ----------
    opset : int
        Operator set that all nodes of the default domain are of.
    batch : int, optional
        Size of the batch; None leaves it free.
    """

    def __init__(self, rng: np.random.Generator, opset: int, dtype: np.dtype[Any], batch: int | None) -> None:
        super().__init__(rng, dtype)
        self.opset = opset
        self.batch = batch
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.shapes: dict[str, Shape] = {}
        self.pool: list[str] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constant_nodes = rng.random() < 0.15
        self._zero_biases: dict[Shape, str] = {}
        self._count = 0

    def mark(self) -> Mark:
        """Return what :meth:`roll_back` needs to take back what is placed from here on."""
        sizes = len(self.nodes), len(self.initializers), len(self.pool), len(self.inputs)
        return Mark(*sizes, dict(self._zero_biases))

    def roll_back(self, mark: Mark) -> None:
        """Take back what was placed since a mark; names stay used up."""
        del self.nodes[mark.nodes :], self.initializers[mark.initializers :]
        del self.pool[mark.pool :], self.inputs[mark.inputs :]
        self._zero_biases = mark.zero_biases

    def add_input(self, shape: Shape, integers: int = 0) -> str:
        """Add a graph input of a shape; `integers` above 0 makes it one of int64."""
        name = f"x{len(self.inputs)}"
        kind = TensorProto.INT64 if integers else helper.np_dtype_to_tensor_dtype(self.dtype)
        batch = self.batch or "batch"
        self.inputs.append(helper.make_tensor_value_info(name, kind, [batch, *shape]))
        self.shapes[name] = shape
        return name

    def leaves(self) -> list[str]:
        """Return the tensors of the pool that no node reads."""
        read = {i for n in self.nodes for i in n.input}
        return [o for n in self.nodes for o in n.output if o in self.pool and o not in read]

    def fresh(self, stem: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{stem}_{self._count}"

    def const(self, values: Array | Sequence[int] | float, dtype: Any = None) -> str:
        """Add a constant: numbers given as list are int64, a float has the graph's type."""
        if isinstance(values, float):
            values = np.array(values, dtype or self.dtype)
        elif not isinstance(values, np.ndarray):
            values = np.array(values, dtype or np.int64)
        name = self.fresh("c")
        tensor = (
            numpy_helper.from_array(np.ascontiguousarray(values), name)
            if values.ndim
            else (numpy_helper.from_array(values, name))
        )
        if self.constant_nodes and self.chance(0.5):
            self.nodes.append(helper.make_node("Constant", [], [name], name=f"node_{name}", value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def bias(self, *shape: int) -> str:
        """A bias; now and then all zero, one, or the one that another layer has already."""
        if self.chance(0.15):
            if shape not in self._zero_biases:
                value = self.choice([0.0, 0.0, 0.25])
                self._zero_biases[shape] = self.const(np.full(shape, value, self.dtype))
            return self._zero_biases[shape]
        return self.const(self.normal(*shape, std=0.3))

    def has(self, op: str, domain: str = "") -> bool:
        """Return whether the operator set has an operator."""
        if domain or op in UNKNOWN_TO_ONNX:
            return True
        try:
            schema = defs.get_schema(op, self.opset, "")
        except defs.SchemaError:
            return False
        return not schema.deprecated

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        shape: Sequence[int] = (),
        domain: str = "",
        outputs: int = 1,
        **attrs: Any,
    ) -> str:
        """Add a node with one used output; `shape` is that of the output."""
        return self.nodes_out(op, inputs, [tuple(shape)] * outputs, domain, **attrs)[0]

    def nodes_out(
        self, op: str, inputs: Sequence[str], shapes: Sequence[Shape | None], domain: str = "", **attrs: Any
    ) -> list[str]:
        """Add a node; an output without a shape is left out."""
        if not self.has(op, domain):
            raise DoesNotFitError
        name = self.fresh(op.lower())
        outs = [f"{name}_out{i}" if s is not None else "" for i, s in enumerate(shapes)]
        unnamed = self.chance(0.1)
        self.nodes.append(
            helper.make_node(op, list(inputs), outs, name="" if unnamed else name, domain=domain, **attrs)
        )
        for out, s in zip(outs, shapes, strict=True):
            if s is not None:
                self.shapes[out] = tuple(s)
        return outs

    def same(self, op: str, x: str, *others: str, domain: str = "", **attrs: Any) -> str:
        """Add a node whose result has the shape of `x`."""
        return self.node(op, [x, *others], self.shapes[x], domain, **attrs)

    def plus(self, x: str, value: float) -> str:
        """Add a number."""
        return self.same("Add", x, self.const(value))

    def times(self, x: str, value: float) -> str:
        """Multiply by a number."""
        return self.same("Mul", x, self.const(value))

    def cast(self, x: str, to: int | None = None) -> str:
        """Cast to an element type; to the graph's own if none is given."""
        return self.same("Cast", x, to=to or helper.np_dtype_to_tensor_dtype(self.dtype))

    def positive(self, x: str, least: float) -> str:
        """Return a function of a tensor that is nowhere below `least`."""
        return self.plus(self.same(self.choice(["Abs", "Sigmoid"]), x), least)

    def bounded(self, x: str, bound: float = 0.9) -> str:
        """Return a function of a tensor that lies between -bound and bound."""
        return self.times(self.same("Tanh", x), bound)
