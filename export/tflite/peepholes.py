"""Small rewrites of the finished graph: fused activations, cancelling pairs, biases."""

from collections import defaultdict

import numpy as np

from onnxfold.export.tflite.graph import ACTIVATES, Graph, Operator, Value, same_shape

_ACTIVATIONS = ("RELU", "RELU6", "RELU_N1_TO_1")
_MOST_SLICED = 4
_WITH_BIAS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "CONV_3D")


class _Uses:
    """Who writes and who reads a value."""

    def __init__(self, graph: Graph) -> None:
        self.writer = {o: op for op in graph.operators for o in op.outputs}
        self.readers: dict[Value, list[Operator]] = defaultdict(list)
        for op in graph.operators:
            for value in op.inputs:
                self.readers[value].append(op)
        self.fixed = {*graph.inputs, *graph.outputs}  # of the model's interface

    def only_writer(self, op: Operator, index: int = 0) -> Operator | None:
        """Return the operator that writes an input which nobody else reads."""
        value = op.inputs[index]
        if value in self.fixed or len(self.readers[value]) != 1:
            return None
        return self.writer.get(value)


def tidy(graph: Graph) -> None:
    """Rewrite until nothing changes, and drop what no output needs."""
    _drop_unused(graph)
    rewrites = (_merge_pair, _add_bias, _fuse_activation, _squeeze_mean, _flatten_into_dense)
    changed = True
    while changed:
        changed = False
        uses = _Uses(graph)
        for op in list(graph.operators):
            if any(rewrite(op, uses) for rewrite in rewrites):
                changed = True
                _drop_unused(graph)
                uses = _Uses(graph)
    _cut_used_parts(graph)


def _cut_used_parts(graph: Graph) -> None:
    """A SPLIT with parts that nobody reads becomes slices: XNNPACK does not run it in int8."""
    read = {*graph.outputs, *(v for op in graph.operators for v in op.inputs)}
    kept: list[Operator] = []
    for op in graph.operators:
        used = [i for i, part in enumerate(op.outputs) if part in read]
        x = op.inputs[-1]
        if op.code != "SPLIT" or len(used) == len(op.outputs) or len(x.shape) > _MOST_SLICED:
            kept.append(op)
            continue
        rank, axis = len(x.shape), int(op.constant(0))
        size, others = int(op.outputs[0].shape[axis]), sum(1 << i for i in range(rank) if i != axis)
        for i in used:
            ends = [[(i + j) * size if a == axis else 0 for a in range(rank)] for j in range(2)]
            inputs = [x, *map(graph.indices, ends), graph.indices([1] * rank)]
            kept.append(Operator("STRIDED_SLICE", inputs, [op.outputs[i]], {"beginMask": others, "endMask": others}))
    graph.operators[:] = kept


def _drop_unused(graph: Graph) -> None:
    needed = {*graph.outputs}
    kept = []
    for op in reversed(graph.operators):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            kept.append(op)
    graph.operators[:] = reversed(kept)


def _bypass(op: Operator, uses: _Uses, source: Value) -> bool:
    """Let the readers of an operator's output read `source`."""
    if op.outputs[0] in uses.fixed:
        return False
    for reader in uses.readers[op.outputs[0]]:
        reader.inputs[:] = [source if v is op.outputs[0] else v for v in reader.inputs]
    return True


def _merge_pair(op: Operator, uses: _Uses) -> bool:
    """RESHAPE of a RESHAPE, and TRANSPOSE of a TRANSPOSE, is one of them, or none."""
    first = uses.writer.get(op.inputs[0]) if op.code in ("RESHAPE", "TRANSPOSE") else None
    if first is None or first.code != op.code:
        return False
    source, by = first.inputs[0], op.inputs[1:]
    vanishes = same_shape(source.shape, op.outputs[0].shape)
    if op.code == "TRANSPOSE":
        perm = first.constant(1)[op.constant(1)]
        by, vanishes = [Graph().indices(map(int, perm))], list(perm) == list(range(len(perm)))
    if not vanishes or not _bypass(op, uses, source):
        op.inputs[:] = [source, *by]
    return True


def _fuse_activation(op: Operator, uses: _Uses) -> bool:
    """RELU behind an operator that can do it by itself, or behind such an operator and a RESHAPE."""
    first = uses.only_writer(op) if op.code in _ACTIVATIONS else None
    source = uses.only_writer(first) if first is not None and first.code == "RESHAPE" else first
    if first is None or source is None or source.code not in ACTIVATES or source.options.get("fusedActivationFunction"):
        return False
    source.options["fusedActivationFunction"] = op.code
    return (source is not first and _bypass(op, uses, first.outputs[0])) or _replace_output(first, op)


def _replace_output(first: Operator, second: Operator) -> bool:
    """Let the first operator write what the second one wrote."""
    first.outputs[:] = second.outputs
    second.outputs = []
    return True


def _add_bias(op: Operator, uses: _Uses) -> bool:
    """ADD of a constant per output channel behind a layer: its bias."""
    if op.code != "ADD":
        return False
    for index in (0, 1):
        constant = op.inputs[1 - index]
        layer = uses.only_writer(op, index)
        if not constant.is_constant or layer is None or layer.code not in _WITH_BIAS:
            continue
        output = layer.outputs[0]
        width = int(output.shape[-1])
        per_channel = constant.shape[-1:] == (width,) and int(np.prod(constant.shape)) == width
        unchanged = same_shape(op.outputs[0].shape, output.shape)
        activated = any(o.options.get("fusedActivationFunction") for o in (layer, op))
        if not per_channel or not unchanged or activated:
            continue
        bias = layer.inputs[2]
        total = constant.values().reshape(-1) + bias.values()
        layer.inputs[2] = Value((width,), "FLOAT32", bias.name, lambda t=total: t)  # type: ignore[misc]
        return _replace_output(layer, op)
    return False


def _squeeze_mean(op: Operator, uses: _Uses) -> bool:
    """A reduction that keeps axes of size 1, and a RESHAPE that drops them: a reduction that does not keep them."""
    first = uses.only_writer(op) if op.code == "RESHAPE" else None
    if first is None or not first.options.get("keepDims"):
        return False
    shape = first.inputs[0].shape
    gone = {int(a) % len(shape) for a in np.atleast_1d(first.constant(1))}
    rest = tuple(d for i, d in enumerate(shape) if i not in gone)
    if not same_shape(rest, op.outputs[0].shape):
        return False
    first.options["keepDims"] = False
    return _replace_output(first, op)


def _flatten_into_dense(op: Operator, uses: _Uses) -> bool:
    """FULLY_CONNECTED flattens its input by itself."""
    if op.code != "FULLY_CONNECTED" or op.options.get("keepNumDims"):
        return False
    first = uses.writer.get(op.inputs[0])
    if first is None or first.code != "RESHAPE":
        return False
    shape = first.inputs[0].shape
    if len(shape) < 3 or not same_shape(shape[:1], op.outputs[0].shape[:1]):
        return False
    op.inputs[0] = first.inputs[0]
    return True
