"""Latency of every layer of a model, from onnxruntime's profile.

onnxruntime fuses nodes: an activation and an addition go into the convolution before them, a MatMul takes its bias,
layouts are changed in between. A kernel belongs to the node that it is named after or that gives its result; from
there back to the linear operator that it computes, past nodes whose results are never stored. A change of the layout
belongs to the layer that it follows, or that it is made for.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnxfold.channels.group import lists_by_key
from onnxfold.channels.layers import linear
from onnxfold.graph.files.save import to_model
from onnxfold.graph.run.profiling import Kernel, profile_kernels
from onnxfold.graph.run.session import Feeds, InputInfo
from onnxfold.graph.shapes.footprint import feed_shapes
from onnxfold.graph.view import GraphView
from onnxfold.latency.interleaved import clock_for, open_timed, runs_of, time_interleaved

#: Runs of a profile: as many as take about so long, within bounds.
_SECONDS = 1.0
_FEWEST, _MOST = 5, 100
#: Of the runs that are timed as a whole, short ones are repeated for about so long.
_TURN_S = 5e-3
_MARK = re.compile(r"onnxfold\.(\d+)\.")
#: onnxruntime names what it moves to its blocked layout after the tensor that it gives.
_BLOCKED = re.compile(r"(.+)_nchwc(_token_\d+)?$")


@dataclass(frozen=True)
class LayerLatency:
    """Latency of one layer: a linear operator with all that is fused into it, or another node."""

    name: str  # of the node; several fused nodes without a linear operator have the operator that they became
    op_type: str
    output: str  # the node's first output
    shape: tuple[int, ...] | None  # the shape of that output
    seconds: float
    kernels: tuple[str, ...]  # kernels that onnxruntime runs for it


@dataclass(frozen=True)
class LatencyProfile:
    """Where the time of a model goes."""

    layers: tuple[LayerLatency, ...]  # in the order of the graph
    seconds: float  # median seconds of a run, timed as a whole and without the profile
    spread: float  # distance of the quartiles of these runs, over their median
    threads: int  # threads inside an operator
    runs: int  # runs that were profiled


def profile_layers(view: GraphView, feeds: Callable[[list[InputInfo]], Feeds], *, threads: int = 1) -> LatencyProfile:
    """Return the latency of every layer of a model."""
    model = to_model(view)
    session = open_timed(model, view, threads)
    sample = feeds(session.inputs)
    whole = time_interleaved(
        runs_of([session], sample), most_rounds=_MOST, budget_s=_SECONDS, turn_s=_TURN_S, clock=clock_for(threads)
    )  # fmt: skip
    del session
    runs = min(max(int(_SECONDS / max(whole.median(), 1e-9)), _FEWEST), _MOST)
    for i, node in enumerate(model.graph.node):  # a number that can be told wherever onnxruntime uses the name
        node.name = f"onnxfold.{i}.{node.op_type}"
    kernels = profile_kernels(model, sample, threads=threads, runs=runs)
    types = view.types_for(feed_shapes(sample))
    layers = _layers(view, kernels, {name: tensor_type[1] for name, tensor_type in types.items()})
    return LatencyProfile(tuple(layers), whole.median(), whole.spread(), threads, runs)


def _layers(
    view: GraphView, kernels: Sequence[Kernel], shapes: Mapping[str, tuple[int | None, ...]]
) -> Iterable[LayerLatency]:
    owners = _Owners(view, kernels)
    for number, own in sorted(lists_by_key((owners.owner(kernel), kernel) for kernel in kernels).items()):
        seconds, names = sum(kernel.typical for kernel in own), tuple(kernel.name for kernel in own)
        if number < 0:
            yield LayerLatency("(between layers)", own[0].op_type, "", None, seconds, names)
            continue
        node = view.nodes[number]
        shape = shapes.get(node.output[0])
        known = None if shape is None or None in shape else tuple(d for d in shape if d is not None)
        main = next((kernel for kernel in own if owners.own_node(kernel) is not None), own[0])
        op_type = node.op_type if owners.is_linear[number] else main.op_type
        yield LayerLatency(node.name or node.output[0], op_type, node.output[0], known, seconds, names)


class _Owners:
    """The node that each kernel belongs to, by its number; -1 where none is known."""

    def __init__(self, view: GraphView, kernels: Sequence[Kernel]) -> None:
        self._nodes = view.nodes
        self.is_linear = [linear(view, node) is not None for node in self._nodes]
        self._producer = {name: i for i, node in enumerate(self._nodes) for name in node.output if name}
        self._stored = {name for kernel in kernels for name in self._results(kernel)}
        self._writer = {name: kernel for kernel in kernels for name in kernel.outputs}
        self._readers = {name: kernel for kernel in reversed(kernels) for name in kernel.inputs}  # the first of them
        self._known: dict[str, int] = {}

    def owner(self, kernel: Kernel) -> int:
        if kernel.name not in self._known:
            self._known[kernel.name] = -1  # where kernels only lead to each other
            own = self.own_node(kernel)
            self._known[kernel.name] = own if own is not None else self._neighbour(kernel)
        return self._known[kernel.name]

    def own_node(self, kernel: Kernel) -> int | None:
        """Return the node that a kernel's name or result tells; None for those that are there for their neighbours."""
        moves_only = kernel.op_type in ("ReorderInput", "ReorderOutput")
        named = [int(number) for number in _MARK.findall(kernel.name)]
        numbers = named or [self._producer[name] for name in self._results(kernel) if name in self._producer]
        if moves_only or not numbers:
            return None
        linear_ones = [i for i in numbers if self.is_linear[i]]
        return linear_ones[0] if linear_ones else self._computing_node(numbers[-1])

    def _results(self, kernel: Kernel) -> list[str]:
        blocked = _BLOCKED.match(kernel.name)
        return [blocked[1]] if blocked else [name for name in kernel.outputs if name in self._producer]

    def _computing_node(self, number: int) -> int:
        """Return the linear operator before a node, past results that no kernel stores; else the node itself."""
        seen, ahead = set[int](), [number]
        while ahead:
            i = ahead.pop()
            if i in seen:
                continue
            seen.add(i)
            if self.is_linear[i]:
                return i
            ahead += [self._producer[n] for n in self._nodes[i].input if n in self._producer and n not in self._stored]
        return number

    def _neighbour(self, kernel: Kernel) -> int:
        """Return the owner of what a kernel follows, or of what it is made for."""
        before = [self._writer[name] for name in kernel.inputs if name in self._writer]
        after = [self._readers[name] for name in kernel.outputs if name in self._readers]
        order = [*after, *before] if kernel.op_type == "ReorderInput" else [*before, *after]
        return next((owner for other in order if (owner := self.owner(other)) >= 0), -1)
