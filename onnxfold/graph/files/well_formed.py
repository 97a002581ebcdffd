"""Checks of a file on which all code behind :func:`onnxfold.graph.files.load.load` relies.

Cheaper than onnx's checker, which needs the weights, and more lenient: it lets pass what onnxruntime understands and
onnx does not, such as operators of other vendors in the default domain. Names must be unique and known, and make no
cycle; nodes that are merely not in the order of execution are sorted. onnxruntime refuses all that is refused here.
Time and memory grow linearly with the number of nodes.

Model-local functions are written out within a limit on the resulting size.
"""

import re
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from math import prod

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, defs, helper

from onnxfold.errors import MemoryLimitError
from onnxfold.graph.nodes import DEFAULT_DOMAINS, all_nodes, attr_int, attr_ints, read_names, refill, subgraphs
from onnxfold.graph.tensors import LazyTensor, bits_per_element
from onnxfold.machine import memory
from onnxfold.printable import shortened

#: An input or a weight is there before the first node.
_GIVEN = -1
#: A graph around a body: which node writes each of its names, and which node holds the body.
_Around = tuple[dict[str, int], int]
#: So many nodes of a cycle are named.
_NAMED = 6


class WiringError(Exception):
    """A defect of a graph's wiring, in words."""


def node_label(node: NodeProto) -> str:
    """Return how messages call a node."""
    return f"node '{node.name or next(iter(node.output), '')}' ({node.op_type})"


def sort_nodes(model: ModelProto, weights: Iterable[str]) -> int:
    """Bring the nodes of a model, bodies and functions included, into an order in which they can run."""
    try:
        calls_in_order(model.functions)
    except CycleError as error:
        raise WiringError(f"the function '{error.args[1][0][1]}' calls itself") from None
    moved = sum(_sort(f, f.input, f.output, ()) for f in model.functions)
    return moved + _sort_graph(model.graph, weights, ())


def _sort_graph(graph: GraphProto, weights: Iterable[str], around: tuple[_Around, ...]) -> int:
    inputs = [i.name for i in graph.input]
    if (twice := _repeated(inputs)) is not None:
        raise WiringError(f"two inputs of a graph are called '{twice}'")
    sources = [*inputs, *weights, *(t.name for t in graph.initializer)]
    sources += [t.values.name for t in graph.sparse_initializer]
    return _sort(graph, sources, [o.name for o in graph.output], around)


def _sort(
    graph: GraphProto | FunctionProto, sources: Iterable[str], results: Iterable[str], around: tuple[_Around, ...]
) -> int:
    """Check and sort one graph and the bodies in it; return how many nodes stood before a node that they read."""
    nodes = list(graph.node)
    if (named := _repeated(node.name for node in nodes if node.name)) is not None:
        raise WiringError(f"two nodes are called '{named}'; onnxruntime does not load that either: rename one")
    writers = _writers(nodes, dict.fromkeys(sources, _GIVEN), around)
    needs: list[list[int]] = []
    moved = 0
    for i, node in enumerate(nodes):
        moved += sum(_sort_graph(body, (), (*around, (writers, i))) for body in subgraphs(node))
        read = read_names(node)
        for name in read:
            if name not in writers and not any(name in outer for outer, _ in around):
                raise WiringError(
                    f"{node_label(node)} reads '{name}', which is neither an input, nor a weight, nor a node's output"
                )
        needs.append([writers[name] for name in read if writers.get(name, _GIVEN) != _GIVEN])
    for name in results:
        if name not in writers:
            raise WiringError(f"the output '{name}' of a graph is neither an input, nor a weight, nor a node's output")
    early = sum(any(writer >= i for writer in need) for i, need in enumerate(needs))
    if early:
        refill(graph.node, (NodeProto.FromString(nodes[i].SerializeToString()) for i in _order(nodes, needs)))
    return moved + early


def _writers(nodes: Sequence[NodeProto], writers: dict[str, int], around: tuple[_Around, ...]) -> dict[str, int]:
    """Return which node writes each name of a graph; inputs and weights are in `writers` already."""
    for i, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in writers:
                other = writers[name]
                also = "is an input or a weight too" if other == _GIVEN else f"{node_label(nodes[other])} writes too"
                raise WiringError(f"{node_label(node)} writes '{name}', which {also}: every name must be written once")
            if any(outer.get(name, holder) < holder for outer, holder in around):
                raise WiringError(f"{node_label(node)} writes '{name}', which a graph around it has already")
            writers[name] = i
    return writers


def _order(nodes: Sequence[NodeProto], needs: list[list[int]]) -> list[int]:
    """Return an order in which nodes can run; of those that can run the one that stands first comes first."""
    sorter = TopologicalSorter(dict(enumerate(needs)))
    try:
        sorter.prepare()
    except CycleError as error:
        raise WiringError(_cycle([nodes[i] for i in error.args[1][1:]])) from None
    ready, order = list(sorter.get_ready()), []
    heapify(ready)
    while ready:
        order.append(heappop(ready))
        sorter.done(order[-1])
        for reader in sorter.get_ready():
            heappush(ready, reader)
    return order


def _cycle(nodes: Sequence[NodeProto]) -> str:
    if len(nodes) == 1:
        return f"{node_label(nodes[0])} reads its own output: a cycle"
    dots = ", ..." if len(nodes) > _NAMED else ""
    return f"a cycle: {', '.join(map(node_label, nodes[:_NAMED]))}{dots} need each other's outputs"


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, times in Counter(names).items() if times > 1), None)


#: Operators that slide a weight over their input: which input it is.
_SLIDING = {"Conv": 1, "ConvTranspose": 1, "ConvInteger": 1, "FusedConv": 1, "QLinearConv": 3}

_TERM = r"[A-Za-z]*(\.\.\.)?[A-Za-z]*"
_EQUATION = re.compile(rf"{_TERM}(,{_TERM})*(->{_TERM})?")
#: Of a place in a file.
_MOST_DIGITS = 19
#: More than any array can have, also where one of its dimensions is 0.
_MOST_ELEMENTS = 1 << 56

Dims = Mapping[str, Sequence[int]]


def model_problem(model: ModelProto, opset: int) -> str:
    """Return the first fault of a model's nodes, '' if none has any."""
    for node in all_nodes(model.graph.node):
        if name := next((attr.name for attr in node.attribute if attr.ref_attr_name), ""):
            return f"{node_label(node)} takes its '{name}' from a function's call, and is not in a function"
    problem = _nodes_problem(model.graph.node, opset, ChainMap(_dims(model.graph)))
    for function in model.functions:
        own = next((o.version for o in function.opset_import if o.domain in DEFAULT_DOMAINS), opset)
        problem = problem or _nodes_problem(function.node, own, ChainMap())
    return problem


def _nodes_problem(nodes: Iterable[NodeProto], opset: int, dims: ChainMap[str, Sequence[int]]) -> str:
    """Look at nodes and at those of the bodies inside them; `dims` holds shapes of constants by name."""
    for node in nodes:
        problem = _node_problem(node, opset) or _kernel_problem(node, dims) or _equation_problem(node)
        for body in subgraphs(node):
            problem = problem or _nodes_problem(body.node, opset, dims.new_child(_dims(body)))
        if problem:
            return problem
    return ""


def _dims(graph: GraphProto) -> dict[str, Sequence[int]]:
    """Return the shapes of the initializers and Constant nodes of a graph."""
    shapes: dict[str, Sequence[int]] = {t.name: t.dims for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            shapes.update((node.output[0], a.t.dims) for a in node.attribute if a.name == "value")
    return shapes


def _node_problem(node: NodeProto, opset: int) -> str:
    names = [node.name, node.op_type, node.domain, *node.input, *node.output, *(a.name for a in node.attribute)]
    if not all(isinstance(name, str) for name in names):
        return "a node has a name that is not text"
    label = node_label(node)
    if not any(node.output):
        return f"{label} has no output"
    if node.domain not in DEFAULT_DOMAINS:
        return ""
    may_be_empty = _needed_inputs(node.op_type, opset)
    missing = next(
        (i for i, empty in enumerate(may_be_empty) if i >= len(node.input) or not (node.input[i] or empty)), None
    )
    return "" if missing is None else f"{label} has no input {missing}, which it needs"


@cache
def _needed_inputs(op_type: str, opset: int) -> tuple[bool, ...]:
    """Return, for every input that must be listed, whether its name may be empty, as that of Loop's trip count."""
    try:
        schema = defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        return ()
    optional = defs.OpSchema.FormalParameterOption.Optional
    kinds = [parameter.option for parameter in schema.inputs]
    return tuple(i < len(kinds) and kinds[i] == optional for i in range(schema.min_input))


def _kernel_problem(node: NodeProto, dims: Dims) -> str:
    """Return how the attributes of a convolution contradict its weight: onnxruntime says so only when it runs it."""
    place = _SLIDING.get(node.op_type)
    if place is None or place >= len(node.input) or node.input[place] not in dims:
        return ""
    shape = list(dims[node.input[place]])
    kernel, group = list(attr_ints(node, "kernel_shape")), attr_int(node, "group", 1)
    weight = f"but its weight '{node.input[place]}' is {'x'.join(map(str, shape))}"
    if kernel and kernel != shape[2:]:
        return f"{node_label(node)} has kernel_shape {'x'.join(map(str, kernel))}, {weight}"
    if shape and (group < 1 or shape[0] % group):
        return f"{node_label(node)} has {group} groups, {weight}: its first dimension cannot be cut into that many"
    return ""


def _equation_problem(node: NodeProto) -> str:
    """Return the fault of an Einsum's equation, '' if it has none: onnx's shape inference never ends for some."""
    if node.op_type != "Einsum" or node.domain not in DEFAULT_DOMAINS:
        return ""
    equation = next((a.s.decode(errors="replace") for a in node.attribute if a.name == "equation"), "")
    if _EQUATION.fullmatch(equation.replace(" ", "")):
        return ""
    return f"{node_label(node)} has the equation '{shortened(equation, 100)}', which is not an equation"


def payload_fits(weight: LazyTensor) -> bool:
    """Whether a tensor's payload, or the note of where it lies, has the form that its type and shape ask for."""
    proto = weight.proto
    # Of an empty tensor, too, the dimensions must be such that arrays can have them.
    if any(d < 0 for d in proto.dims) or prod(max(d, 1) for d in proto.dims) > _MOST_ELEMENTS:
        return False
    try:
        dtype = weight.dtype
        field = helper.tensor_dtype_to_field(proto.data_type)
    except KeyError:
        return False
    expected = weight.stored_bytes
    if weight.is_external:
        entries = {e.key: e.value for e in proto.external_data}
        offset, length = entries.get("offset", "0"), entries.get("length", str(expected))
        if "\0" in entries.get("location", ""):
            return False
        return dtype.kind != "O" and _is_count(offset) and _is_count(length) and int(length) == expected
    if proto.HasField("raw_data"):
        return dtype.kind != "O" and len(proto.raw_data) == expected
    stored, per_element = len(getattr(proto, field)), 2 if dtype.kind == "c" else 1
    return stored == weight.size * per_element or (bits_per_element(dtype) < 8 and stored == expected)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS


#: Functions that call functions double with every level: a file of some KB can stand for any number of nodes.
MOST_NODES = 1_000_000
#: What a node takes while it is worked on: protobuf, its Python object, shapes and declarations (measured).
_NODE_BYTES = 4096

_Key = tuple[str, str, str]


def require_inlinable(model: ModelProto) -> None:
    """Refuse functions that cannot be written out: loading does, so that whoever has a view may inline them."""
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
