"""One network of images in the forms that exporters write: each computes the same of images in its own shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
#: Mean and deviation of standardised images as pixels of 0 to 255.
MEAN, DEVIATION = 120.0, 62.0


@dataclass(frozen=True)
class Form:
    """A network in another form, and how it takes standardised images of the shape (n, channels, height, width)."""

    model: onnx.ModelProto
    feed: Callable[[Array], Array]


class _Writer:
    """A copy of a network, whose nodes are replaced one by one."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto.FromString(model.SerializeToString())
        self.graph = self.model.graph
        del self.graph.value_info[:]
        self.image = self.graph.input[0].name
        self.size = [d.dim_value for d in self.graph.input[0].type.tensor_type.shape.dim[1:]]

    @property
    def weights(self) -> dict[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.graph.initializer}

    def numbers(self, name: str) -> Array:
        return numpy_helper.to_array(self.weights[name])

    def put(self, name: str, values: Any) -> str:
        tensor = numpy_helper.from_array(np.asarray(values), name)
        if name in self.weights:
            self.weights[name].CopyFrom(tensor)
        else:
            self.graph.initializer.append(tensor)
        return name

    def rewrite(self, write: Callable[[NodeProto], Iterator[NodeProto]]) -> None:
        nodes = [new for node in list(self.graph.node) for new in write(node)]
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def put_front(self, *steps: tuple[str, list[str], dict[str, Any]]) -> None:
        """Put nodes in front, each with its operator, further inputs and attributes."""
        names = [self.image, *(f"front_{i}" for i in range(len(steps)))]
        for node in self.graph.node:
            node.input[:] = [names[-1] if name == self.image else name for name in node.input]
        for i, (operator, more, attributes) in reversed(list(enumerate(steps))):
            self.graph.node.insert(0, helper.make_node(operator, [names[i], *more], [names[i + 1]], **attributes))

    def declare(self, elem_type: int, dims: list[int | str]) -> None:
        self.graph.input[0].CopyFrom(helper.make_tensor_value_info(self.image, elem_type, dims))

    def set_batch(self, size: int) -> None:
        for info in (*self.graph.input, *self.graph.output):
            info.type.tensor_type.shape.dim[0].dim_value = size

    def answer(self, operator: str, elem_type: int, **attributes: Any) -> None:
        """Put a node behind the answer, in place of it."""
        scores = self.graph.output[0]
        dims = [d.dim_param or d.dim_value for d in scores.type.tensor_type.shape.dim]
        self.graph.node.append(helper.make_node(operator, [scores.name], ["answer"], **attributes))
        dims = dims[:1] if elem_type == TensorProto.INT64 else dims
        scores.CopyFrom(helper.make_tensor_value_info("answer", elem_type, dims))


def _as_is(images: Array) -> Array:
    return images


def _as_pixels(images: Array) -> Array:
    return (images * DEVIATION + MEAN).astype(np.float32)


def _as_bytes(images: Array) -> Array:
    return np.clip(np.rint(_as_pixels(images)), 0, 255).astype(np.uint8)


def _last(images: Array) -> Array:
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))


def _flat(images: Array) -> Array:
    return images.reshape(len(images), -1)


_NORMALISED: tuple[tuple[str, list[str], dict[str, Any]], ...] = (("Sub", ["mean"], {}), ("Div", ["deviation"], {}))


def _with_constants(writer: _Writer) -> _Writer:
    writer.put("mean", np.full((1, writer.size[0], 1, 1), MEAN, np.float32))
    writer.put("deviation", np.full((1, writer.size[0], 1, 1), DEVIATION, np.float32))
    return writer


def _plain(w: _Writer) -> Form:
    return Form(w.model, _as_is)


def _batch_of_one(w: _Writer) -> Form:
    w.set_batch(1)
    return Form(w.model, _as_is)


def _channels_last(w: _Writer) -> Form:
    w.put_front(("Transpose", [], {"perm": [0, 3, 1, 2]}))
    w.declare(TensorProto.FLOAT, ["n", *w.size[1:], w.size[0]])
    return Form(w.model, _last)


def _pixels(w: _Writer) -> Form:
    _with_constants(w).put_front(*_NORMALISED)
    return Form(w.model, _as_pixels)


def _bytes(w: _Writer) -> Form:
    _with_constants(w).put_front(("Cast", [], {"to": TensorProto.FLOAT}), *_NORMALISED)
    w.declare(TensorProto.UINT8, ["n", *w.size])
    return Form(w.model, _as_bytes)


def _bytes_last(w: _Writer) -> Form:
    front = ("Transpose", [], {"perm": [0, 3, 1, 2]}), ("Cast", [], {"to": TensorProto.FLOAT})
    _with_constants(w).put_front(*front, *_NORMALISED)
    w.declare(TensorProto.UINT8, ["n", *w.size[1:], w.size[0]])
    return Form(w.model, lambda images: _last(_as_bytes(images)))


def _flat_pixels(w: _Writer) -> Form:
    w.put("shape", np.array([-1, *w.size], np.int64))
    _with_constants(w).put_front(("Reshape", ["shape"], {}), *_NORMALISED)
    w.declare(TensorProto.FLOAT, ["n", int(np.prod(w.size))])
    return Form(w.model, lambda images: _flat(_as_pixels(images)))


def _flat_images(w: _Writer) -> Form:
    w.put_front(("Reshape", [w.put("shape", np.array([-1, *w.size], np.int64))], {}))
    w.declare(TensorProto.FLOAT, ["n", int(np.prod(w.size))])
    return Form(w.model, _flat)


def _frames_of_one(w: _Writer) -> Form:
    w.put_front(("Squeeze", [w.put("axes", np.array([1], np.int64))], {}))
    w.declare(TensorProto.FLOAT, ["n", 1, *w.size])
    return Form(w.model, lambda images: images[:, None])


def _first_normalisation(w: _Writer) -> Form:
    ones = np.ones(w.size[0], np.float32)
    values = {"scale": ones, "shift": 0 * ones, "of_mean": MEAN * ones, "of_variance": DEVIATION**2 * ones}
    names = [w.put(name, value) for name, value in values.items()]
    w.put_front(("BatchNormalization", names, {"epsilon": 0.0}))
    return Form(w.model, _as_pixels)


def _in_first_layer(largest: float) -> Callable[[_Writer], Form]:
    def write(w: _Writer) -> Form:
        conv = next(node for node in w.graph.node if node.op_type == "Conv")
        assert conv.input[0] == w.image
        if len(conv.input) < 3:
            conv.input.append(w.put("bias_of_mean", np.zeros(len(w.numbers(conv.input[1])), np.float32)))
        mean, deviation = MEAN / 255 * largest, DEVIATION / 255 * largest
        filters = w.numbers(conv.input[1]).astype(np.float64) / deviation
        bias = w.numbers(conv.input[2]) - mean * filters.sum(axis=(1, 2, 3))
        w.put(conv.input[1], filters.astype(np.float32))
        w.put(conv.input[2], bias.astype(np.float32))
        return Form(w.model, lambda images: (_as_pixels(images) / 255 * largest).astype(np.float32))

    return write


def _weights_behind(operator: str) -> Callable[[_Writer], Form]:
    def write(w: _Writer) -> Form:
        if operator == "Constant":
            made = [helper.make_node("Constant", [], [t.name], value=t) for t in w.graph.initializer]
            del w.graph.initializer[:]
        else:
            made = [helper.make_node("Identity", [f"{t.name}_in"], [t.name]) for t in w.graph.initializer]
            for tensor in w.graph.initializer:
                tensor.name += "_in"
        for node in reversed(made):
            w.graph.node.insert(0, node)
        return Form(w.model, _as_is)

    return write


def _biases_behind(w: _Writer) -> Form:
    def write(node: NodeProto) -> Iterator[NodeProto]:
        if node.op_type != "Conv" or len(node.input) < 3:
            yield node
            return
        bias, output = node.input.pop(), node.output[0]
        w.put(bias, w.numbers(bias).reshape(1, -1, 1, 1))
        node.output[0] = f"{output}_plain"
        yield node
        yield helper.make_node("Add", [f"{output}_plain", bias], [output])

    w.rewrite(write)
    return Form(w.model, _as_is)


def _padded_apart(w: _Writer) -> Form:
    def write(node: NodeProto) -> Iterator[NodeProto]:
        pads = next((a for a in node.attribute if a.name == "pads" and any(a.ints)), None)
        if node.op_type == "Conv" and pads is not None:
            half = len(pads.ints) // 2
            name = w.put(
                f"{node.output[0]}_pads", np.array([0, 0, *pads.ints[:half], 0, 0, *pads.ints[half:]], np.int64)
            )
            node.attribute.remove(pads)
            yield helper.make_node("Pad", [node.input[0], name], [f"{name}_padded"])
            node.input[0] = f"{name}_padded"
        yield node

    w.rewrite(write)
    return Form(w.model, _as_is)


def _same_pads(w: _Writer) -> Form:
    for node in w.graph.node:
        numbers = {a.name: list(a.ints) for a in node.attribute if a.ints}
        pads, kernel = numbers.get("pads", [0]), numbers.get("kernel_shape", [0])
        is_same = pads == [(k - 1) // 2 for k in kernel] * 2 and not any(k % 2 == 0 for k in kernel)
        if node.op_type == "Conv" and is_same and set(numbers.get("strides", [1])) == {1}:
            for name in ("pads", "strides", "dilations"):
                for attribute in [a for a in node.attribute if a.name == name]:
                    node.attribute.remove(attribute)
            node.attribute.append(helper.make_attribute("auto_pad", "SAME_UPPER"))
    return Form(w.model, _as_is)


def _relus_as(operator: str) -> Callable[[_Writer], Form]:
    def write(w: _Writer) -> Form:
        zero = w.put("zero", np.float32(0))

        def put(node: NodeProto) -> Iterator[NodeProto]:
            if node.op_type == "Relu":
                attributes = {"alpha": 0.0} if operator == "LeakyRelu" else {}
                inputs = [node.input[0]] if operator == "LeakyRelu" else [node.input[0], zero]
                node = helper.make_node(operator, inputs, list(node.output), node.name, **attributes)
            yield node

        w.rewrite(put)
        return Form(w.model, _as_is)

    return write


def _classes(w: _Writer) -> Form:
    w.answer("ArgMax", TensorProto.INT64, axis=1, keepdims=0)
    return Form(w.model, _as_is)


def _probabilities(w: _Writer) -> Form:
    w.answer("Softmax", TensorProto.FLOAT, axis=1)
    return Form(w.model, _as_is)


def _few_bits(w: _Writer) -> Form:
    made = []
    for node in w.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            name, values = node.input[1], w.numbers(node.input[1])
            size = np.abs(values.reshape(len(values), -1)).max(axis=1).clip(1e-12) / 127
            stored = np.rint(values / size.reshape(-1, *[1] * (values.ndim - 1))).astype(np.int8)
            w.graph.initializer.remove(w.weights[name])
            parts = {"stored": stored, "size": size.astype(np.float32), "zero": np.zeros(len(values), np.int8)}
            names = [w.put(f"{name}_{part}", value) for part, value in parts.items()]
            made.append(helper.make_node("DequantizeLinear", names, [name], axis=0))
    for node in reversed(made):
        w.graph.node.insert(0, node)
    return Form(w.model, _as_is)


#: Forms by what is unusual, of a network whose first convolution reads its images, and whose answers are class scores.
#: They compute the same but for the rounding of bytes and weights of 8 bits, and for pads of zeros where a first layer
#: scales pixels.
FORMS: dict[str, Callable[[_Writer], Form]] = {
    "as it is": _plain,
    "a batch of one": _batch_of_one,
    "channels last": _channels_last,
    "flat images": _flat_images,
    "frames of one": _frames_of_one,
    "pixels behind Sub and Div": _pixels,
    "bytes behind Cast, Sub and Div": _bytes,
    "bytes, channels last": _bytes_last,
    "flat pixels": _flat_pixels,
    "pixels behind a BatchNormalization": _first_normalisation,
    "pixels up to 255, scaled in the first layer": _in_first_layer(255.0),
    "pixels up to 1, scaled in the first layer": _in_first_layer(1.0),
    "weights from Constant": _weights_behind("Constant"),
    "weights behind Identity": _weights_behind("Identity"),
    "weights of int8": _few_bits,
    "biases behind Conv": _biases_behind,
    "pads before Conv": _padded_apart,
    "auto_pad": _same_pads,
    "Relu as Max": _relus_as("Max"),
    "Relu as LeakyRelu": _relus_as("LeakyRelu"),
    "Softmax behind": _probabilities,
    "ArgMax behind": _classes,
}


def written_as(model: onnx.ModelProto, form: str) -> Form:
    """Return a network in a form, checked."""
    written = FORMS[form](_Writer(model))
    onnx.checker.check_model(written.model, full_check=True)
    return written
