"""What the rules declare about single nodes: which axis goes where, and which must stay."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import ArrayLike
from onnx import TensorProto

from tests.channels.describe import node_axes

IMAGE = [2, 6, 4, 4]


@dataclass(frozen=True)
class Row:
    """A node and what must be declared: links as 'a.0>y.0', blocked axes as 'a.1 y.1'."""

    op: str
    links: str
    blocked: str = ""
    shapes: list[list[int | str]] = field(default_factory=lambda: [IMAGE])
    attrs: dict[str, object] = field(default_factory=dict)
    constants: dict[str, ArrayLike] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    types: tuple[int, ...] = ()

    def __str__(self) -> str:
        details = [f"{k}={v}" for k, v in {**self.attrs, **self.constants}.items()]
        return " ".join([f"{self.op}-{self.opset}", *details]).replace("\n", "")


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


ALL_FOUR = "a.0>y.0 a.1>y.1 a.2>y.2 a.3>y.3"
BATCH_AND_CHANNELS = "a.0>y.0 a.1>y.1"
SPACE = "a.2 a.3 y.2 y.3"

TABLE = [
    # elementwise
    Row("Relu", ALL_FOUR),
    Row("Clip", ALL_FOUR, constants={"low": np.float32(0), "high": np.float32(6)}),
    Row("Cast", ALL_FOUR, attrs={"to": TensorProto.INT32}),
    Row("CastLike", ALL_FOUR, shapes=[IMAGE, [9, 9]]),
    Row("Dropout", ALL_FOUR + " a.0>z.0 a.1>z.1 a.2>z.2 a.3>z.3", outputs=2),
    Row("Dropout", ALL_FOUR, constants={"ratio": np.float32(0.5), "training": np.array(False)}),
    Row(
        "Dropout", "", "a.0 a.1 a.2 a.3 y.0 y.1 y.2 y.3",
        constants={"ratio": np.float32(0.5), "training": np.array(True)},
    ),
    # broadcasting
    Row("Add", "a.3>y.3 a.2>y.2 a.1>y.1 a.0>y.0 b.3>y.3 b.2>y.2 b.1>y.1 b.0>y.0", shapes=[IMAGE, IMAGE]),
    Row("Mul", "a.3>y.3 a.2>y.2 a.1>y.1 a.0>y.0 b.1>y.1 b.0>y.0", shapes=[IMAGE, [2, 6, 1, 1]]),
    Row("Mul", "a.1>y.1 a.0>y.0 b.1>y.2 b.0>y.1", shapes=[[2, 6, 1], [6, 4]]),
    Row("Add", "a.3>y.3 a.2>y.2 a.1>y.1 a.0>y.0 w.0>y.1", constants={"w": np.ones((6, 1, 1), np.float32)}),
    Row("Add", "a.3>y.3 a.2>y.2 a.1>y.1 a.0>y.0", constants={"w": np.float32(1)}),
    Row("PRelu", ALL_FOUR + " w.0>y.1", constants={"w": np.ones((6, 1, 1), np.float32)}),
    Row("PRelu", ALL_FOUR, constants={"w": np.ones(1, np.float32)}),
    Row(
        "Where", "a.1>y.1 a.0>y.0 b.1>y.1 b.0>y.0 c.0>y.1", shapes=[[2, 6], [2, 6], [6]],
        types=(TensorProto.BOOL, TensorProto.FLOAT, TensorProto.FLOAT),
    ),
    # joins and cuts
    Row("Concat", "a.0>y.0 a.2>y.2 a.1>y.1[0,1,2] b.0>y.0 b.2>y.2 b.1>y.1[3,4]",
        shapes=[[2, 3, 5], [2, 2, 5]], attrs={"axis": 1}),
    Row("Concat", "a.0>y.0 a.1>y.1[0,1] b.0>y.0 b.1>y.1[2,3]", shapes=[[3, 2], [3, 2]], attrs={"axis": -1}),
    Row("Split", "a.0>y.0 a.1[0,1]>y.1 a.0>z.0 a.1[2,3,4,5]>z.1", shapes=[[2, 6]], outputs=2, attrs={"axis": 1},
        constants={"sizes": ints(2, 4)}),
    Row("Split", "a.0>y.0 a.1[0,1]>y.1 a.0>z.0 a.1[2,3,4,5]>z.1", shapes=[[2, 6]], outputs=2, opset=11,
        attrs={"axis": -1, "split": [2, 4]}),
    Row("Slice", "a.0>y.0 a.1[1,2,3]>y.1", shapes=[[2, 6]],
        constants={"starts": ints(1), "ends": ints(-2), "axes": ints(1)}),
    Row("Slice", "a.0>y.0 a.1[4,5]>y.1", shapes=[[2, 6]],
        constants={"starts": ints(-2), "ends": ints(2**40), "axes": ints(-1)}),
    Row("Slice", "a.0>y.0", "a.1 y.1", shapes=[[2, 6]],
        constants={"starts": ints(0), "ends": ints(6), "axes": ints(1), "steps": ints(2)}),
    Row("Slice", "a.0>y.0", "a.1 y.1", shapes=[[2, 6]],
        constants={"starts": ints(5), "ends": ints(-9), "axes": ints(1), "steps": ints(-1)}),
    Row("Slice", "a.0>y.0 a.1[2,3]>y.1", shapes=[[2, 6]], opset=9, attrs={"starts": [2], "ends": [4], "axes": [1]}),
    Row("Pad", "a.0>y.0 a.1>y.1[2,3,4,5,6,7] a.2>y.2[0,1,2,3] a.3>y.3", constants={"p": ints(0, 2, 0, 0, 0, 1, 1, 0)}),
    Row("Pad", "a.0>y.0 a.1>y.1", "a.2 a.3 y.2 y.3", attrs={"mode": "reflect"},
        constants={"p": ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    Row("Pad", "a.0>y.0 a.2>y.2 a.3>y.3", "a.1 y.1", constants={"p": ints(0, -1, 0, 0, 0, 0, 0, 0)}),
    Row("Pad", "a.0>y.0 a.1>y.1[1,2,3]", shapes=[[2, 3]], opset=10, attrs={"pads": [0, 1, 0, 1]}),
    Row("Gather", "a.0>y.0 a.2>y.2 a.1[2,0,2,5]>y.1", shapes=[[2, 6, 3]], attrs={"axis": 1},
        constants={"i": ints(2, 0, 2, -1)}),
    Row("Gather", "a.0>y.0 a.2>y.1", "a.1", shapes=[[2, 6, 3]], attrs={"axis": 1}, constants={"i": np.int64(2)}),
    Row("Gather", "a.0>y.0", "a.1 y.1 y.2", shapes=[[2, 6]], attrs={"axis": 1}, constants={"i": np.array([[0, 1]])}),
    Row("Tile", "a.0>y.0 a.1[0,1,2,0,1,2]>y.1", shapes=[[2, 3]], constants={"r": ints(1, 2)}),
    Row("DepthToSpace", "a.0>y.0 a.1>y.1[0,1,0,1,0,1,0,1]", SPACE, shapes=[[2, 8, 2, 2]], attrs={"blocksize": 2}),
    Row("DepthToSpace", "a.0>y.0 a.1>y.1[0,0,0,0,1,1,1,1]", SPACE, shapes=[[2, 8, 2, 2]],
        attrs={"blocksize": 2, "mode": "CRD"}),
    Row("SpaceToDepth", "a.0>y.0 a.1[0,1,0,1,0,1,0,1]>y.1", SPACE, shapes=[[2, 2, 4, 4]], attrs={"blocksize": 2}),
    # other shapes
    Row("Transpose", "a.0>y.0 a.2>y.1 a.3>y.2 a.1>y.3", attrs={"perm": [0, 2, 3, 1]}),
    Row("Transpose", "a.2>y.0 a.1>y.1 a.0>y.2", shapes=[[2, 3, 4]]),
    Row("Squeeze", "a.0>y.0 a.1>y.1", "a.2 a.3", shapes=[[2, 6, 1, 1]], constants={"axes": ints(2, -1)}),
    Row("Squeeze", "a.0>y.0 a.1>y.1", "a.2", shapes=[[2, 6, 1]]),
    Row("Squeeze", "a.0>y.0 a.1>y.1", "a.2", shapes=[[2, 6, 1]], opset=11, attrs={"axes": [2]}),
    Row("Unsqueeze", "a.0>y.0 a.1>y.2", "y.1 y.3", shapes=[[2, 6]], constants={"axes": ints(1, -1)}),
    Row("Unsqueeze", "a.0>y.1 a.1>y.2", "y.0", shapes=[[2, 6]], opset=11, attrs={"axes": [0]}),
    Row("Flatten", BATCH_AND_CHANNELS, "a.2 a.3", shapes=[[2, 6, 1, 1]]),
    Row("Flatten", "a.0>y.0", "a.1 a.2 a.3 y.1"),
    Row("Reshape", BATCH_AND_CHANNELS, "a.2 a.3 y.2", constants={"t": ints(2, 6, 16)}),
    Row("Reshape", "a.1>y.1", "a.2 a.3 y.2", shapes=[["N", 6, 4, 4]], constants={"t": ints(-1, 6, 16)}),
    Row("Reshape", "", "a.0 a.1 a.2 a.3 y.0 y.1", shapes=[["N", 6, 4, 4]], constants={"t": ints(-1, 6)}),
    Row("Reshape", "", "a.0 a.1 a.2 y.0 y.1 y.2", shapes=[["N", 6, "W"]], constants={"t": ints(-1, 6, 4)}),
    Row("Reshape", "", "a.0 a.1 y.0 y.1", shapes=[[4, 6]], constants={"t": ints(6, 4)}),
    Row("Reshape", "a.1>y.1", "a.2 a.3 y.2", shapes=[["N", 6, "H", "W"]], constants={"t": ints(0, 6, -1)}),
    Row("Expand", "a.1>y.1 a.0>y.0", "a.2 y.2", shapes=[[2, 6, 1]], constants={"t": ints(1, 6, 4)}),
    Row("Shape", "", "a.0 a.1 a.2 a.3 y.0"),
    Row("Size", "", "a.0 a.1 a.2 a.3"),
    # over axes
    Row("GlobalAveragePool", BATCH_AND_CHANNELS, SPACE),
    Row("MaxPool", BATCH_AND_CHANNELS, SPACE, attrs={"kernel_shape": [2, 2]}),
    Row("MaxPool", "", "a.0 a.1 a.2 a.3 y.0 y.1 y.2 y.3 z.0 z.1 z.2 z.3", attrs={"kernel_shape": [2, 2]}, outputs=2),
    Row("ReduceMean", "a.0>y.0 a.1>y.1", "a.2 a.3", attrs={"axes": [2, -1], "keepdims": 0}),
    Row("ReduceMean", "a.0>y.0 a.2>y.2 a.3>y.3", "a.1 y.1", attrs={"axes": [1]}),
    Row("ReduceSum", "a.0>y.0 a.2>y.1 a.3>y.2", "a.1", attrs={"keepdims": 0}, constants={"axes": ints(1)}),
    Row("ReduceMax", "", "a.0 a.1 a.2 a.3 y.0 y.1 y.2 y.3"),
    Row("ReduceSum", ALL_FOUR, attrs={"noop_with_empty_axes": 1}),
    Row("ReduceMax", BATCH_AND_CHANNELS, SPACE, constants={"axes": ints(-2, 3)}, opset=18),
    Row("ArgMax", "a.0>y.0 a.2>y.1 a.3>y.2", "a.1", attrs={"axis": 1, "keepdims": 0}),
    Row("Softmax", "a.0>y.0 a.1>y.1 a.2>y.2", "a.3 y.3"),
    Row("Softmax", "a.0>y.0 a.2>y.2 a.3>y.3", "a.1 y.1", attrs={"axis": 1}),
    Row("Softmax", "a.0>y.0", "a.1 a.2 a.3 y.1 y.2 y.3", opset=12),
    Row("TopK", "a.0>y.0 a.1>y.1 a.0>z.0 a.1>z.1", "a.2 y.2 z.2", shapes=[[2, 6, 4]], outputs=2,
        constants={"k": ints(2)}),
    Row("LogSoftmax", "a.0>y.0 a.1>y.1", "a.2 y.2", shapes=[[2, 6, 4]]),
    Row("CumSum", "a.0>y.0 a.2>y.2 a.3>y.3", "a.1 y.1", constants={"axis": np.int64(1)}),
    Row("LpNormalization", "a.0>y.0 a.2>y.2 a.3>y.3", "a.1 y.1", attrs={"axis": 1}),
    Row("LRN", "a.0>y.0 a.2>y.2 a.3>y.3", "a.1 y.1", attrs={"size": 3}),
    Row("InstanceNormalization", "a.0>y.0 a.1>y.1 s.0>y.1 t.0>y.1", SPACE,
        constants={"s": np.ones(6, np.float32), "t": np.ones(6, np.float32)}),
    Row("InstanceNormalization", "a.0>y.0 a.1>y.1 b.0>y.1 c.0>y.1", SPACE, shapes=[IMAGE, [6], [6]]),
    Row("LayerNormalization", "a.0>y.0 a.1>y.1 a.2>y.2", "a.3 y.3", constants={"s": np.ones(4, np.float32)}),
    Row("Resize", BATCH_AND_CHANNELS, SPACE, constants={"roi": np.float32([]), "scales": np.float32([1, 1, 2, 2])}),
    Row("Resize", BATCH_AND_CHANNELS, SPACE, constants={"scales": np.float32([1, 1, 2, 2])}, opset=10),
    Row("Resize", "a.0>y.0 a.2>y.2 a.3>y.3", "a.1 y.1", constants={"scales": np.float32([1, 2, 1, 1])}, opset=10),
    Row("Upsample", BATCH_AND_CHANNELS, SPACE, opset=9, constants={"scales": np.float32([1, 1, 2, 2])}),
    # products of activations
    Row("MatMul", "a.1>y.1 b.2>y.2 a.0>y.0 b.0>y.0", "a.2 b.1", shapes=[[2, 3, 4], [2, 4, 5]]),
    Row("Gemm", "", "a.0 a.1 b.0 b.1 y.0 y.1", shapes=[[3, 4], [4, 5]]),
    Row("Einsum", "a.0>y.0 a.1>y.1 b.0>y.0 b.2>y.2", "a.2 b.1", shapes=[[2, 3, 4], [2, 4, 5]],
        attrs={"equation": "bij,bjk->bik"}),
    Row("Einsum", "", "a.0 a.1 y.0", shapes=[[4, 4]], attrs={"equation": "ii->i"}),
    Row("QuantizeLinear", ALL_FOUR, constants={"s": np.float32(0.1), "z": np.uint8(0)}),
    Row("QuantizeLinear", "", "a.0 a.1 a.2 a.3 y.0 y.1 y.2 y.3", attrs={"axis": 1},
        constants={"s": np.ones(6, np.float32), "z": np.zeros(6, np.uint8)}),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_node(row: Row) -> None:
    links, blocked = node_axes(row.op, row.shapes, row.attrs, row.constants, row.opset, row.outputs, row.types)
    assert sorted(links.split()) == sorted(row.links.split())
    assert blocked == row.blocked
