"""Small files that ask for more than any machine has."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Tensor = onnx.TensorProto


def weight(name: str, *shape: int) -> Tensor:
    return numpy_helper.from_array(np.random.default_rng(0).standard_normal(shape).astype(np.float32), name)


def numbers(name: str, *values: int) -> Tensor:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def scalar(name: str, value: int) -> Tensor:
    return numpy_helper.from_array(np.array(value, np.int64), name)


def network(
    *first: onnx.NodeProto,
    image: str = "x",
    size: tuple[int | None, ...] = (1, 3, 8, 8),
    constants: tuple[Tensor, ...] = (),
    **conv: object,
) -> onnx.ModelProto:
    """Return two convolutions of `image`, which nodes in front of them may compute."""
    nodes = [
        *first,
        helper.make_node("Conv", [image, "w1"], ["a"], "c1", **conv),
        helper.make_node("Relu", ["a"], ["b"], "r"),
        helper.make_node("Conv", ["b", "w2"], ["y"], "c2"),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        [weight("w1", 8, 3, 3, 3), weight("w2", 4, 8, 1, 1), *constants],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def scaled(*nodes: onnx.NodeProto, constants: tuple[Tensor, ...]) -> onnx.ModelProto:
    """Return two convolutions of an image that is multiplied by the mean of a tensor 't'."""
    mean = [
        helper.make_node("Cast", ["t"], ["t_float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["t_float"], ["t_mean"], keepdims=0),
        helper.make_node("Mul", ["x", "t_mean"], ["x_scaled"]),
    ]
    return network(*nodes, *mean, image="x_scaled", constants=constants)


node = helper.make_node
HUGE = {
    "pads": network(pads=[2**31] * 4),
    "pads beyond 64 bits": network(pads=[2**62] * 4),
    "input": network(size=(1, 3, 60000, 60000)),
    "input of a free batch": network(size=(None, 3, 60000, 60000)),
    "input beyond 64 bits": network(size=(1, 3, 2**40, 2**40)),
    "batch": network(size=(2**40, 3, 8, 8)),
    "Tile": network(node("Tile", ["x", "r"], ["t"]), image="t", constants=(numbers("r", 1, 1, 2**16, 2**15),)),
    "Pad": network(node("Pad", ["x", "p"], ["t"]), image="t", constants=(numbers("p", *[0, 0, 2**40, 0] * 2),)),
    "Resize": network(
        node("Resize", ["x", "", "", "s"], ["t"], mode="nearest"),
        image="t",
        constants=(numbers("s", 1, 3, 2**30, 2**30),),
    ),
    "Range": scaled(
        node("Range", ["z", "n", "d"], ["t"]), constants=(scalar("z", 0), scalar("n", 2**40), scalar("d", 1))
    ),
    "ConstantOfShape": scaled(node("ConstantOfShape", ["n"], ["t"]), constants=(numbers("n", 2**39),)),
    "ConstantOfShape of integers": scaled(
        node("ConstantOfShape", ["n"], ["t"], value=helper.make_tensor("", TensorProto.INT64, [1], [1])),
        constants=(numbers("n", 2**39),),
    ),
    "Expand": scaled(node("Expand", ["one", "n"], ["t"]), constants=(numbers("one", 1), numbers("n", 2**40))),
    "Tile of a constant": scaled(node("Tile", ["one", "n"], ["t"]), constants=(numbers("one", 1), numbers("n", 2**40))),
    "OneHot": scaled(
        node("OneHot", ["i", "n", "v"], ["t"]), constants=(numbers("i", 1, 2), scalar("n", 2**40), numbers("v", 0, 1))
    ),
}  # fmt: skip
