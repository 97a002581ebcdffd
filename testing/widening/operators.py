"""Numbers that count or name channels, from a table of operators, without the rules of the library."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from onnxfold.graph.files.load import load
from testing.quick import groups_of
from testing.widening.axes import Array, WideAxis

Layout = Callable[[str, int], WideAxis]


class OperatorNumbers:
    """Rewrites a graph operator by operator; the model need not be normalised.

    Parameters
    ----------
    model : ModelProto
        The narrow one. Its folded weights must be initializers.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.groups = groups_of(model)
        self.weights: dict[str, Array] = {}
        self.shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        for info in [*inferred.input, *inferred.value_info, *inferred.output]:
            self.shapes[info.name] = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        view = load(model)  # knows of operators that onnx does not know
        for name in (o for node in model.graph.node for o in node.output if o and not self.shapes.get(o)):
            self.shapes[name] = tuple(d or 0 for d in view.shape(name) or ())

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the narrow shape of a tensor."""
        return self.shapes[tensor]

    def rewrite(self, model: onnx.ModelProto, layout: Layout, weights: dict[str, Array]) -> None:
        """Adjust attributes of a copy of the model, and constants among its weights."""
        self._layout, self.weights = layout, weights
        for node in model.graph.node:
            rewrite = getattr(self, f"_{node.op_type.lower()}", None)
            if rewrite is not None:
                rewrite(node)

    def _width(self, tensor: str, axis: int) -> int:
        return len(self._layout(tensor, axis % len(self.shapes[tensor])).source)

    def _numbers(self, node: onnx.NodeProto, name: str, index: int) -> tuple[Array, Callable[[Array], None]]:
        """Return a list of numbers, an attribute or a constant input, and what stores a new one."""
        attr = next((a for a in node.attribute if a.name == name), None)
        if attr is not None:
            return np.array(attr.ints), lambda new: attr.ints.__setitem__(slice(None), new.tolist())
        old = self.weights[node.input[index]]
        return old.copy(), lambda new: self.weights.__setitem__(node.input[index], new.astype(old.dtype))

    def _conv(self, node: onnx.NodeProto) -> None:
        for attr in node.attribute:
            if attr.name == "group" and attr.i > 1 and attr.i == self.shapes[node.input[0]][1]:
                attr.i = self._width(node.input[0], 1)

    _convtranspose = _conv

    def _reshape(self, node: onnx.NodeProto) -> None:
        target, store = self._numbers(node, "shape", 1)
        new = [self._width(node.output[0], i) if size > 0 else size for i, size in enumerate(target.tolist())]
        store(np.array(new))

    def _expand(self, node: onnx.NodeProto) -> None:
        target, store = self._numbers(node, "shape", 1)
        new = [self._width(node.output[0], i) if size > 1 else size for i, size in enumerate(target.tolist())]
        store(np.array(new))

    def _resize(self, node: onnx.NodeProto) -> None:
        if len(node.input) > 3:
            sizes, store = self._numbers(node, "sizes", 3)
            store(np.array([sizes[0], self._width(node.output[0], 1), *sizes[2:]]))

    def _split(self, node: onnx.NodeProto) -> None:
        (axis,) = [a.i for a in node.attribute if a.name == "axis"]
        _, store = self._numbers(node, "split", 1)
        store(np.array([self._width(y, axis) for y in node.output]))

    def _slice(self, node: onnx.NodeProto) -> None:
        """Bounds count the positions in front of them."""
        x = node.input[0]
        axes, _ = self._numbers(node, "axes", 3)
        for name, index in (("starts", 1), ("ends", 2)):
            bounds, store = self._numbers(node, name, index)
            for i, axis in enumerate(axes.tolist()):
                first = slice(int(bounds[i]), None).indices(self.shapes[x][axis])[0]
                bounds[i] = (self._layout(x, axis % len(self.shapes[x])).source < first).sum()
            store(bounds)

    def _gather(self, node: onnx.NodeProto) -> None:
        """Every index names the place of the channel that the result has there."""
        if node.input[1] not in self.weights or self.weights[node.input[1]].ndim != 1:
            return
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        old, store = self._numbers(node, "indices", 1)
        x, y = node.input[0], node.output[0]
        data, result = (self._layout(t, axis % len(self.shapes[t])) for t in (x, y))
        place = {
            (g, unit, position): i
            for i, (position, g, unit) in enumerate(zip(data.source, data.group, data.unit, strict=True))
        }
        chosen = old[result.source] % self.shapes[node.input[0]][axis]
        keys = zip(result.group, result.unit, chosen, strict=True)
        store(np.array([place[g, unit, position] for g, unit, position in keys]))

    def _lstm(self, node: onnx.NodeProto) -> None:
        for attr in node.attribute:
            if attr.name == "hidden_size":
                attr.i = self._width(next(filter(None, node.output)), -1)

    _gru = _rnn = _lstm

    def _groupqueryattention(self, node: onnx.NodeProto) -> None:
        """Heads lie on the last axis of queries; keys follow them, on the same axis or on one of their own."""
        counts = {a.name: a for a in node.attribute}
        size = self.shapes[node.output[0]][-1] // counts["num_heads"].i
        counts["num_heads"].i = self._width(node.output[0], -1) // size
        if node.input[1]:
            counts["kv_num_heads"].i = self._width(node.input[1], -1) // size
        else:
            packed = self._width(node.input[0], -1) // size
            counts["kv_num_heads"].i = (packed - counts["num_heads"].i) // 2

    def _multiheadattention(self, node: onnx.NodeProto) -> None:
        (count,) = (a for a in node.attribute if a.name == "num_heads")
        count.i = count.i * self._width(node.output[0], -1) // self.shapes[node.output[0]][-1]

    def _attention(self, node: onnx.NodeProto) -> None:
        if node.domain:
            sizes = next((a for a in node.attribute if a.name == "qkv_hidden_sizes"), None)
            old, new = self.shapes[node.output[0]][-1], self._width(node.output[0], -1)
            if sizes is not None:
                sizes.ints[:] = [size * new // old for size in sizes.ints]
            self._multiheadattention(node)
        for attr in node.attribute if not node.domain else ():
            tensor = {"q_num_heads": node.output[0], "kv_num_heads": node.input[1]}.get(attr.name)
            if tensor is not None:
                attr.i = attr.i * self._width(tensor, -1) // self.shapes[tensor][-1]

    def _rotaryembedding(self, node: onnx.NodeProto) -> None:
        for attr in node.attribute:
            if attr.name == "num_heads":
                attr.i = attr.i * self._width(node.output[0], -1) // self.shapes[node.output[0]][-1]

    def _pad(self, node: onnx.NodeProto) -> None:
        """Pad the channel axis by as many positions as lie before and behind the input after the widening."""
        rank, channels = len(self.shapes[node.input[0]]), 1
        pads, store = self._numbers(node, "pads", 1)
        padded = (self.weights[node.input[3]] % rank).tolist() if len(node.input) > 3 else list(range(rank))
        if channels in padded:
            begin, end = padded.index(channels), padded.index(channels) + len(padded)
            before, inside = int(pads[begin]), self.shapes[node.input[0]][channels]
            source = self._layout(node.output[0], channels).source
            pads[begin], pads[end] = (source < before).sum(), (source >= before + inside).sum()
            store(pads)
