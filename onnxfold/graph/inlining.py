"""Inlining of model-local functions, within a limit on the resulting size."""

from collections import Counter
from collections.abc import Iterable
from graphlib import TopologicalSorter

import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto

from onnxfold.errors import MemoryLimitError
from onnxfold.graph.nodes import all_nodes
from onnxfold.machine import memory

#: Functions that call functions double with every level: a file of some KB can stand for any number of nodes.
MOST_NODES = 1_000_000
#: What a node takes while it is worked on: protobuf, its Python object, shapes and declarations (measured).
_NODE_BYTES = 4096

_Key = tuple[str, str, str]


def inline_calls(model: ModelProto) -> ModelProto:
    """Return a model with the calls of its functions replaced by their bodies."""
    require_inlinable(model)
    return onnx.inliner.inline_local_functions(model)


def require_inlinable(model: ModelProto) -> None:
    """Refuse functions that cannot be written out; raises what :func:`inline_calls` does."""
    if not model.functions:
        return
    sizes: dict[_Key, int] = {}  # of every function, in nodes, when it is written out
    for key, calls in calls_in_order(model.functions).items():
        sizes[key] = _size(calls, sizes)
    count = _size(_calls(model.graph.node), sizes)
    if count > MOST_NODES:
        raise MemoryLimitError(
            f"the functions of the model, written out, are {count:,} nodes, more than {MOST_NODES:,}: "
            "export it without nested functions"
        )
    memory.require(count * _NODE_BYTES, f"the model with its functions written out ({count:,} nodes)")


def calls_in_order(functions: Iterable[FunctionProto]) -> dict[_Key, Counter[_Key]]:
    """Return the functions that each function calls, called ones first; raises CycleError where one calls itself."""
    calls = {(f.domain, f.name, f.overload): _calls(f.node) for f in functions}
    order = TopologicalSorter({key: [called for called in counts if called in calls] for key, counts in calls.items()})
    return {key: calls[key] for key in order.static_order()}


def _size(calls: Counter[_Key], sizes: dict[_Key, int]) -> int:
    return sum(times * sizes.get(key, 1) for key, times in calls.items())


def _calls(nodes: Iterable[NodeProto]) -> Counter[_Key]:
    """Count the operators of nodes, those of bodies included."""
    return Counter((node.domain, node.op_type, node.overload) for node in all_nodes(nodes))
