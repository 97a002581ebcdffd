"""Give every node its own copy of the small constants that it shares with others."""

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import NodeProto

from onnxfold.graph.nodes import node_key, rewritten
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class UnshareInitializers(Pass):
    """Copy vectors (one axis longer than 1) that several inputs read.

    Optimisers deduplicate equal biases and BatchNormalization parameters; sharing would couple the channels
    of layers that have nothing to do with each other. Copies that stay equal are shared again by ShareInitializers.
    Matrices and filters stay shared: there the sharing is the model's own (siamese branches, tied weights), and
    its channels really are the same.
    """

    def run(self, view: GraphView) -> PassResult:
        """Copy for every reader but the first."""
        seen: set[str] = set()
        names: dict[str, Iterator[str]] = {}
        copies: dict[str, str] = {}
        rewired: dict[str, NodeProto] = {}
        for node in view.nodes:
            inputs = list(node.input)
            for i, name in enumerate(inputs):
                if not view.is_weight(name) or sum(d > 1 for d in view.weights[name].shape) != 1:
                    continue
                if name in seen:
                    copy = next(names.setdefault(name, view.fresh_names(f"{name}_copy")))
                    view.put_weights({copy: view.weights[name]})
                    copies[copy] = name
                    inputs[i] = copy
                seen.add(name)
            if inputs != node.input:
                rewired[node_key(node)] = rewritten(node, inputs=inputs)
        return PassResult(view.substitute(rewired), copies)
