"""Run a graph in torch, differentiable with respect to its inputs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from onnx import NodeProto
from torch import Tensor

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.nodes import captured_names, node_key
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.torch_graph import operators as operators  # registers the builders
from onnxfold.torch_graph.registry import BUILDERS, Operation, TorchNode, to_tensor


class TorchGraph:
    """A graph as a function of torch tensors.

    Every value is a tensor; shapes, indices and truth values are integer and boolean ones, which carry no gradient.
    Weights are constants. `operations` holds the function that computes a node, by the node's first output; entries may
    be replaced.
    """

    def __init__(self, view: GraphView, device: str = "cpu", fed: Collection[str] = ()) -> None:
        self.view = view
        self.device = torch.device(device)
        self._nodes = view.nodes
        self.operations: dict[str, Operation] = {node_key(n): build_operation(view, n) for n in self._nodes}
        self._constants: dict[str, Tensor] = {}
        self._schedules: dict[tuple[str, ...], list[tuple[NodeProto, list[str]]]] = {}
        self._precompute(fed)

    def tensor(self, values: Array) -> Tensor:
        """Return an array on the device."""
        return to_tensor(values).to(self.device)

    def run(self, feeds: Mapping[str, Tensor], wanted: Sequence[str]) -> dict[str, Tensor]:
        """Return tensors of the graph by name."""
        values: dict[str, Any] = {"": None, **feeds}
        for node, last in self._schedule(tuple(wanted)):
            values |= self._outputs(node, values)
            for name in last:
                values.pop(name, None)
        return {name: values[name] if name in values else self._constants[name] for name in wanted}

    def _schedule(self, wanted: tuple[str, ...]) -> list[tuple[NodeProto, list[str]]]:
        """Return the nodes to run, each with the names that nobody wants behind it; computed once per set of names."""
        if wanted in self._schedules:
            return self._schedules[wanted]
        needed = set(wanted)
        chosen: list[tuple[NodeProto, list[str]]] = []
        for node in reversed(self._nodes):
            if any(o in needed for o in node.output if o and o not in self._constants):
                last = [i for i in dict.fromkeys(node.input) if i and i not in needed]
                needed.update(i for i in node.input if i)
                chosen.append((node, last))
        return self._schedules.setdefault(wanted, chosen[::-1])

    def _outputs(self, node: NodeProto, values: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        inputs = [values[i] if i in values else self._constant(i) for i in node.input]
        try:
            result = self.operations[node_key(node)](*inputs)
        except UnsupportedModelError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise UnsupportedModelError(
                f"node '{node.name or node_key(node)}' ({node.op_type}) does not run in torch: {reason}"
            ) from error
        outputs = result if isinstance(result, tuple) else (result,)
        return {name: value for name, value in zip(node.output, outputs, strict=False) if name}

    def _constant(self, name: str) -> Tensor:
        if name not in self._constants:
            self._constants[name] = self.tensor(self.view.weight(name))
        return self._constants[name]

    def _precompute(self, fed: Collection[str]) -> None:
        """Run the nodes that depend on no input once."""
        constant = {name for name in self.view.weights if name not in fed} | {""}
        with torch.no_grad():
            for node in self._nodes:
                if constant.issuperset(node.input):
                    made = self._outputs(node, {"": None})
                    self._constants.update({name: value.to(self.device) for name, value in made.items()})
                    constant.update(node.output)


def fast_layout(x: Tensor) -> Tensor:
    """Return images with their channels last in memory: convolutions are twice as fast in this layout.

    A single channel lies in both layouts; only the strides say which one the first convolution is to write.
    """
    if x.ndim != 4:
        return x
    if x.shape[1] == 1:
        return x.reshape(len(x), *x.shape[2:], 1).permute(0, 3, 1, 2)
    return x.contiguous(memory_format=torch.channels_last)


def build_operation(view: GraphView, node: NodeProto) -> Operation:
    """Return the function that computes a node."""
    context = TorchNode(view, node)
    build = BUILDERS.find(node.domain, node.op_type, context.version)
    if build is None or captured_names(node):
        raise context.unsupported("this operator has no differentiable form")
    return build(context)


def unsupported_ops(view: GraphView) -> list[str]:
    """Return, for every node that :class:`TorchGraph` would refuse, why; empty if it runs the graph."""
    reasons = []
    for node in view.nodes:
        try:
            build_operation(view, node)
        except UnsupportedModelError as error:
            reasons.append(str(error))
    return reasons
