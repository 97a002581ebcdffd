"""Loops that may never end, and a limit to the time of a run that reaches one.

A Loop ends by its trip count or by its condition. Whether the condition ever becomes false is not decidable in general.
Two answers are given here: a Loop without a trip count whose condition is constant is known not to end, and is not run;
a Loop without a trip count whose condition is computed is stopped after a time limit.

That a condition stays true is shown by induction: if the body, its constants known, makes true of true, it does so in
every turn.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from onnx import GraphProto, NodeProto, TensorProto

from onnxfold.errors import EndlessRunError
from onnxfold.graph.nodes import DEFAULT_DOMAINS, subgraphs
from onnxfold.graph.tensors import LazyTensor, Weight, constant_value, loaded
from onnxfold.graph.view import GraphView

#: Most seconds of one run of a network, or of a node, that holds a Loop without a trip count.
MOST_SECONDS = 60.0
#: From this trip count on a Loop counts as one without: exporters write the largest integer for no limit.
_FOREVER = 2**31 - 1


@dataclass(frozen=True)
class OpenLoop:
    """A Loop whose number of turns is limited by nothing but a computed condition."""

    name: str
    is_endless: bool  # whether it is known never to end once it is reached, and known to be reached

    def require_end(self) -> None:
        """Refuse to run what never ends."""
        if self.is_endless:
            raise EndlessRunError(
                f"Loop '{self.name}' never ends: it has no trip count, and its condition is always true"
            )

    def too_long(self) -> EndlessRunError:
        """Return the error of a run that reached the time limit."""
        return EndlessRunError(
            f"a run was ended after {MOST_SECONDS:g} s: Loop '{self.name}' has no trip count, and its condition does "
            "not become false on these inputs"
        )


def open_loop(view: GraphView, nodes: Iterable[NodeProto] | None = None) -> OpenLoop | None:
    """Return a Loop that may never end, preferably one that is known to be endless; None if all end."""
    loops = list(_open_loops(view, view.graph.node if nodes is None else nodes, {}, certain=True))
    for function in view.model.functions if nodes is None else ():
        loops += _open_loops(None, function.node, {}, certain=False)
    return max(loops, key=lambda loop: loop.is_endless, default=None)


@contextmanager
def limit_run(loop: OpenLoop | None) -> Iterator[ort.RunOptions | None]:
    """Give options for runs inside the block, which end when they take longer than :data:`MOST_SECONDS`."""
    if loop is None:
        yield None
        return
    loop.require_end()
    options = ort.RunOptions()
    options.log_severity_level = 4
    timer = threading.Timer(MOST_SECONDS, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield options
    except Exception:  # onnxruntime's exception classes are not public
        if options.terminate:
            raise loop.too_long() from None
        raise
    finally:
        timer.cancel()


def _open_loops(
    view: GraphView | None, nodes: Iterable[NodeProto], known: dict[str, int], *, certain: bool
) -> Iterator[OpenLoop]:
    """Yield the open Loops among nodes and in their bodies; single numbers that are found are added to `known`."""
    for node in nodes:
        if node.op_type == "Loop" and node.domain in DEFAULT_DOMAINS:
            yield from _open_loop(view, node, known, certain=certain)
            continue
        for body in subgraphs(node):
            yield from _open_loops(view, body.node, known | _numbers(body), certain=False)
        value = _value(view, known, node.input[0]) if node.op_type == "Identity" else _number(constant_value(node))
        if value is not None:
            known[node.output[0]] = value


def _open_loop(view: GraphView | None, node: NodeProto, known: dict[str, int], *, certain: bool) -> Iterator[OpenLoop]:
    count, condition = [*node.input, "", ""][:2]
    start = _value(view, known, condition) if condition else 1
    for body in subgraphs(node):
        inner = known | _numbers(body) | ({body.input[1].name: 1} if start else {})
        yield from _open_loops(view, body.node, inner, certain=False)
        end = _value(view, inner, body.output[0].name)
        turns = _value(view, known, count) if count else _FOREVER
        if start != 0 and end != 0 and turns is not None and turns >= _FOREVER:
            yield OpenLoop(node.name or node.output[0], certain and bool(start and end))


def _value(view: GraphView | None, known: Mapping[str, int], name: str) -> int | None:
    """Return a constant that is one number, None for what is not known."""
    if name in known or view is None:
        return known.get(name)
    holder = view.holder(name)
    return None if holder is None else _number(holder.weights[name])


def _number(weight: Weight | None) -> int | None:
    """Return the value of a weight that is one whole number, None for others."""
    values = loaded(weight) if weight is not None and weight.size == 1 else np.zeros(0)
    return int(values.reshape(-1)[0]) if values.dtype.kind in "biu" else None


def _numbers(body: GraphProto) -> dict[str, int]:
    """Return the initializers of a body that are one number."""
    stored = [t for t in body.initializer if t.data_location != TensorProto.EXTERNAL]
    return {t.name: value for t in stored if (value := _number(LazyTensor(t))) is not None}
