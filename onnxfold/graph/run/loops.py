"""Loops that may never end, and a limit to the time of a run that reaches one.

A Loop ends by its trip count or by its condition. Whether the condition ever becomes false is not decidable in general:
a run with a Loop that has no trip count is stopped after a time limit.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import onnxruntime as ort
from onnx import NodeProto

from onnxfold.errors import EndlessRunError
from onnxfold.graph.nodes import DEFAULT_DOMAINS, all_nodes, model_nodes, subgraphs
from onnxfold.graph.tensors import LazyTensor, Weight, constant_value, loaded
from onnxfold.graph.view import GraphView

#: Most seconds of one run of a network, or of a node, that holds a Loop without a trip count.
MOST_SECONDS = 60.0
#: From this trip count on a Loop counts as one without: exporters write the largest integer for no limit.
_FOREVER = 2**31 - 1


def open_loop(view: GraphView, nodes: Iterable[NodeProto] | None = None) -> str | None:
    """Return the name of a Loop that may never end, in some nodes or anywhere in a model; None if all end."""
    inside = list(model_nodes(view.model) if nodes is None else all_nodes(nodes))
    loops = [node for node in inside if node.op_type == "Loop" and node.domain in DEFAULT_DOMAINS]
    known: dict[str, Weight] = {}
    for node in (*view.nodes, *inside) if loops else ():
        value = constant_value(node)
        known |= {} if value is None else {node.output[0]: value}
        known |= {tensor.name: LazyTensor(tensor) for body in subgraphs(node) for tensor in body.initializer}
    for node in loops:
        count = node.input[0]
        turns = known.get(count) if (weight := view.find_weight(count)) is None else weight
        if not count or (turns is not None and int(loaded(turns).reshape(-1)[0]) >= _FOREVER):
            return node.name or str(node.output[0])
    return None


def too_long(loop: str) -> EndlessRunError:
    """Return the error of a run that reached the time limit."""
    return EndlessRunError(
        f"a run was ended after {MOST_SECONDS:g} s: Loop '{loop}' has no trip count, and its condition does not become "
        "false on these inputs"
    )


@contextmanager
def limit_run(loop: str | None, *, gives_back: bool = False) -> Iterator[ort.RunOptions | None]:
    """Give options for runs inside the block: those of a Loop end when they take longer than :data:`MOST_SECONDS`.

    Those of large activations may give the memory of these back to the system.
    """
    if loop is None and not gives_back:
        yield None
        return
    options = ort.RunOptions()
    options.log_severity_level = 4
    if gives_back:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    if loop is None:
        yield options
        return
    timer = threading.Timer(MOST_SECONDS, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield options
    except Exception:  # onnxruntime's exception classes are not public
        if options.terminate:
            raise too_long(loop) from None
        raise
    finally:
        timer.cancel()
