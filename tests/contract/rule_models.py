"""One small network per operator that has a channel rule: Conv, the operator, a layer that reads its result.

The channels of the first Conv must come through the operator, so that folding them goes through its rule.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, defs, helper

from onnxfold.channels.rules.broadcast import BROADCASTS
from onnxfold.channels.rules.elementwise import UNARY
from tests.graph_builder import GraphBuilder

IMAGE = (3, 8, 8)
WIDTH = 6
Middle = Callable[[GraphBuilder, str], str]

_BOOL_RESULT = {"IsInf", "IsNaN"}
_COMPARISONS = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
_LOGICAL = {"And", "Or", "Xor"}
_BITWISE = {"BitwiseAnd", "BitwiseOr", "BitwiseXor"}

#: Operators that opset 17 does not have.
_NEWER = {
    "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Gelu", "GroupNormalization", "Mish", "RMSNormalization",
    "Swish",
}  # fmt: skip


def _net(op: str, middle: Middle, opset: int) -> onnx.ModelProto:
    version = int(defs.get_schema(op).since_version) if op in _NEWER else opset
    g = GraphBuilder(op, 1, IMAGE, version, ir_version=8 if version < 19 else 10)
    g.domains["com.microsoft"] = 1
    h = middle(g, g.sigmoid(g.conv("x", WIDTH)))
    if len(g.shapes[h]) == 3:
        h = g.flatten(g.relu(g.conv(h, 8)))
    g.output(g.gemm(h, 5))
    return g.build()


def _vector(g: GraphBuilder, name: str, low: float = 0.5, high: float = 1.5) -> str:
    return g.constant(name, g.uniform(low, high, WIDTH, 1, 1))


def _plus(g: GraphBuilder, x: str, value: float) -> str:
    return g.node("Add", [x, g.constant(f"plus_{x}_{value}", np.array(value, np.float32))], g.shapes[x])


def _times(g: GraphBuilder, x: str, value: float) -> str:
    return g.node("Mul", [x, g.constant(f"times_{x}_{value}", np.array(value, np.float32))], g.shapes[x])


def _cast(g: GraphBuilder, x: str, to: int = TensorProto.FLOAT) -> str:
    return g.node("Cast", [x], g.shapes[x], to=to)


def _is_large(g: GraphBuilder, x: str, name: str) -> str:
    return g.node("Greater", [x, _vector(g, name, 0.3, 0.7)], g.shapes[x])


def _unary(op: str) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        if op == "Cast":
            return _cast(g, _cast(g, _times(g, x, 9.0), TensorProto.INT32))
        if op == "Not":
            return _cast(g, g.unary(op, _is_large(g, x, "threshold")))
        if op == "BitwiseNot":
            return _cast(g, g.unary(op, _cast(g, _times(g, x, 9.0), TensorProto.INT32)))
        if op == "Acosh":
            x = _plus(g, x, 1.0)
        elif op in ("Ceil", "Floor", "Round", "Sign"):
            x = _plus(g, _times(g, x, 4.0), -2.0)
        y = g.unary(op, x)
        return _cast(g, y) if op in _BOOL_RESULT else y

    return middle


def _binary(op: str) -> Middle:
    """The operator with a constant per channel, and with a second activation."""

    def middle(g: GraphBuilder, x: str) -> str:
        other = g.sigmoid(g.conv("x", WIDTH))
        if op in _LOGICAL:
            both = [_is_large(g, x, "low"), _is_large(g, other, "high")]
            return _cast(g, g.node(op, both, g.shapes[x]))
        if op in _BITWISE:
            a, b = (_cast(g, _times(g, t, 9.0), TensorProto.INT32) for t in (x, other))
            constant = g.constant("bits", np.arange(1, WIDTH + 1, dtype=np.int32).reshape(-1, 1, 1))
            return _cast(g, g.node(op, [g.node(op, [a, constant], g.shapes[x]), b], g.shapes[x]))
        constant = _vector(g, "constant")
        if op in _COMPARISONS:
            with_constant, with_other = (g.node(op, [x, y], g.shapes[x]) for y in (constant, other))
            return g.add(g.mul(_cast(g, with_constant), x), g.mul(_cast(g, with_other), other))
        if op == "Where":
            inner = g.node(op, [_is_large(g, x, "high"), constant, x], g.shapes[x])
            return g.node(op, [_is_large(g, x, "low"), inner, other], g.shapes[x])
        attrs = {"fmod": 1} if op == "Mod" else {}
        y = g.node(op, [x, constant], g.shapes[x], **attrs)
        return g.node(op, [y, _plus(g, other, 0.5)], g.shapes[x], **attrs)

    return middle


def _pool(op: str, **attrs: object) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        size = 1 if op.startswith("Global") else 4
        window = {} if op.startswith("Global") else {"kernel_shape": [2, 2], "strides": [2, 2]}
        return g.node(op, [x], [WIDTH, size, size], **window, **attrs)

    return middle


def _reduce(op: str, opset: int, keepdims: int) -> Middle:
    """Over the spatial axes; as an attribute where the operator has it, else as an input."""

    def middle(g: GraphBuilder, x: str) -> str:
        shape = [WIDTH, 1, 1] if keepdims else [WIDTH]
        if opset < (13 if op == "ReduceSum" else 18):
            return g.node(op, [x], shape, axes=[-2, -1], keepdims=keepdims)
        return g.node(op, [x, g.constant("axes", np.array([2, 3], np.int64))], shape, keepdims=keepdims)

    return middle


def _arg(op: str) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        return _cast(g, g.node(op, [x], [WIDTH, 1, 8], axis=2))

    return middle


def _pad(opset: int) -> Middle:
    """Two channels in front and one behind, and one position around the image; added to a wider stream."""
    pads = [0, 2, 1, 1, 0, 1, 1, 1]

    def middle(g: GraphBuilder, x: str) -> str:
        shape = [WIDTH + 3, 10, 10]
        if opset < 11:
            y = g.node("Pad", [x], shape, pads=pads)
        elif opset < 18:
            y = g.node("Pad", [x, g.constant("pads", np.array(pads, np.int64))], shape)
        else:
            part = g.constant("pads", np.array([1, 2, 1, 1, 1, 1], np.int64))
            y = g.node("Pad", [x, part, "", g.constant("axes", np.array([3, 1, -2], np.int64))], shape)
        return g.add(y, g.conv("x", WIDTH + 3, 3, pad=2))

    return middle


def _squeeze(opset: int) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        pooled, name = g.global_average_pool(x), "axes"
        if opset < 13:
            flat = g.node("Squeeze", [pooled], [WIDTH], axes=[2, -1])
            return g.node("Unsqueeze", [flat], [WIDTH, 1, 1], axes=[2, 3])
        axes = g.constant(name, np.array([2, 3], np.int64))
        return g.node("Unsqueeze", [g.node("Squeeze", [pooled, axes], [WIDTH]), axes], [WIDTH, 1, 1])

    return middle


def _shape(g: GraphBuilder, x: str) -> str:
    """The height of the image scales it: only that axis must stay."""
    shape = g.node("Shape", [x], [])
    height = g.node("Gather", [shape, g.constant("height", np.array(2, np.int64))], [], axis=0)
    return g.mul(x, _cast(g, height))


def _size(g: GraphBuilder, x: str) -> str:
    """The number of elements of another tensor scales the image."""
    return g.mul(x, _cast(g, g.node("Size", [g.conv("x", 4, 1)], [])))


def _reshape(g: GraphBuilder, x: str) -> str:
    target = g.constant("target", np.array([0, WIDTH, 4, 16], np.int64))
    back = g.constant("back", np.array([-1, WIDTH, 8, 8], np.int64))
    return g.node("Reshape", [g.node("Reshape", [x, target], [WIDTH, 4, 16]), back], [WIDTH, 8, 8])


def _depth_to_space(mode: str) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        deep = g.conv(x, 4 * WIDTH, stride=2)
        return g.mul(x, g.sigmoid(g.node("DepthToSpace", [deep], [WIDTH, 8, 8], blocksize=2, mode=mode)))

    return middle


def _space_to_depth(g: GraphBuilder, x: str) -> str:
    return g.node("SpaceToDepth", [x], [4 * WIDTH, 4, 4], blocksize=2)


def _einsum(g: GraphBuilder, x: str) -> str:
    """A constant mixes the channels; then two activations meet position by position, summed over the image."""
    mixed = g.node("Einsum", [x, g.constant("mix", g.normal(WIDTH, 8))], [8, 8, 8], equation="nchw,cd->ndhw")
    other = g.node("Einsum", [g.constant("left", g.normal(8, WIDTH)), x], [8, 8, 8], equation="dc, nchw -> ndhw")
    return g.node("Einsum", [mixed, other], [8], equation="ndhw,ndhw->nd")


def _expand(g: GraphBuilder, x: str) -> str:
    target = g.constant("target", np.array([1, WIDTH, 8, 8], np.int64))
    return g.mul(x, g.node("Expand", [g.global_average_pool(x), target], [WIDTH, 8, 8]))


def _tile(g: GraphBuilder, x: str) -> str:
    return g.node("Tile", [x, g.constant("repeats", np.array([1, 2, 1, 1], np.int64))], [2 * WIDTH, 8, 8])


def _gather(g: GraphBuilder, x: str) -> str:
    """Two channels twice, the others once, one counted from the end; then all in reverse, times a row of the image."""
    chosen = g.constant("chosen", np.array([4, 0, -1, 2, 1, 3, 4, 2], np.int64))
    y = g.node("Gather", [x, chosen], [8, 8, 8], axis=1)
    row = g.node("Gather", [y, g.constant("row", np.array([3], np.int64))], [8, 1, 8], axis=2)
    return g.node("Gather", [g.mul(y, row), g.constant("reverse", np.arange(8)[::-1].copy())], [8, 8, 8], axis=1)


def _gather_order(g: GraphBuilder, x: str) -> str:
    """Two filters per channel, whose results change places for every second channel."""
    filtered = g.relu(g.conv(x, 2 * WIDTH, groups=WIDTH))
    order = np.arange(2 * WIDTH).reshape(-1, 2)
    order[1::2] = order[1::2, ::-1]
    return g.node("Gather", [filtered, g.constant("order", order.reshape(-1))], [2 * WIDTH, 8, 8], axis=1)


def _shuffle(g: GraphBuilder, x: str) -> str:
    """ShuffleNet's channel shuffle behind a grouped convolution."""
    y = g.conv(x, WIDTH, 1, groups=2)
    split = g.node("Reshape", [y, g.constant("split", np.array([0, 2, 3, 8, 8], np.int64))], [2, 3, 8, 8])
    swapped = g.node("Transpose", [split], [3, 2, 8, 8], perm=[0, 2, 1, 3, 4])
    y = g.node("Reshape", [swapped, g.constant("join", np.array([0, WIDTH, 8, 8], np.int64))], [WIDTH, 8, 8])
    return g.conv(y, WIDTH, groups=WIDTH)


def _split(opset: int, equal: bool = False) -> Middle:
    """Two unequal parts with a layer for each, or three equal ones that are multiplied."""

    def middle(g: GraphBuilder, x: str) -> str:
        sizes = [2, 2, 2] if equal else [2, 4]
        outputs = [f"part_{i}" for i in range(len(sizes))]
        inputs, attrs = [x], {"axis": 1}
        if equal:
            attrs.update({"num_outputs": 3} if opset >= 18 else {})
        elif opset < 13:
            attrs["split"] = sizes
        else:
            inputs.append(g.constant("sizes", np.array(sizes, np.int64)))
        g.nodes.append(helper.make_node("Split", inputs, outputs, name="split", **attrs))
        for name, size in zip(outputs, sizes, strict=True):
            g.shapes[name] = (size, 8, 8)
        if equal:
            return g.mul(g.mul(outputs[0], outputs[1]), outputs[2])
        return g.concat(outputs[1], g.conv(outputs[0], 3), outputs[0])

    return middle


def _slice(opset: int) -> Middle:
    """All channels but the first, up to the last but one, of the right part of the image."""

    def middle(g: GraphBuilder, x: str) -> str:
        starts, ends, axes = [1, -6], [-1, 2**31], [1, 3]
        if opset < 10:
            return g.node("Slice", [x], [WIDTH - 2, 8, 6], starts=starts, ends=ends, axes=axes)
        bounds = {"starts": starts, "ends": ends, "axes": axes, "steps": [1, 1]}
        constants = [g.constant(name, np.array(values, np.int64)) for name, values in bounds.items()]
        return g.node("Slice", [x, *constants], [WIDTH - 2, 8, 6])

    return middle


def _resize(opset: int, sizes: bool = False) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        scales = np.array([1, 1, 2, 2], np.float32)
        if opset < 9:
            return g.node("Upsample", [x], [WIDTH, 16, 16], scales=scales.tolist())
        if opset < 11:
            return g.node("Upsample" if opset == 9 else "Resize", [x, g.constant("scales", scales)], [WIDTH, 16, 16])
        if sizes:
            target = g.constant("target", np.array([3, WIDTH, 16, 16], np.int64))
            return g.node("Resize", [x, "", "", target], [WIDTH, 16, 16])
        return g.node("Resize", [x, "", g.constant("scales", scales)], [WIDTH, 16, 16])

    return middle


def _softmax(op: str) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        return g.node(op, [_times(g, x, 5.0)], [WIDTH, 8, 8], axis=2)

    return middle


def _top_k(g: GraphBuilder, x: str) -> str:
    g.nodes.append(helper.make_node("TopK", [x, g.constant("k", np.array([3], np.int64))], ["top", "place"], axis=3))
    g.shapes["top"] = (WIDTH, 8, 3)
    return "top"


def _instance_norm(g: GraphBuilder, x: str) -> str:
    scale, shift = g.constant("scale", g.normal(WIDTH)), g.constant("shift", g.normal(WIDTH))
    return g.node("InstanceNormalization", [x, scale, shift], [WIDTH, 8, 8])


def _norm_over_rows(op: str, inputs: int) -> Middle:
    """Normalise over the rows of the image, so that channels are independent samples."""

    def middle(g: GraphBuilder, x: str) -> str:
        parameters = [g.constant(f"parameter_{i}", g.uniform(0.5, 1.5, 8)) for i in range(inputs)]
        return g.node(op, [x, *parameters], [WIDTH, 8, 8], axis=-1)

    return middle


def _skip_norm(op: str) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        flat = g.node("Reshape", [x, g.constant("flat", np.array([0, WIDTH, 64], np.int64))], [WIDTH, 64])
        other = g.constant("flat_too", np.array([0, WIDTH, 64], np.int64))
        skip = g.node("Reshape", [g.conv("x", WIDTH), other], [WIDTH, 64])
        scale = g.constant("scale", g.uniform(0.5, 1.5, 64))
        normed = g.node(op, [flat, skip, scale], [WIDTH, 64], domain="com.microsoft")
        return g.node("Reshape", [normed, g.constant("image", np.array([0, WIDTH, 8, 8], np.int64))], [WIDTH, 8, 8])

    return middle


def _group_norm(g: GraphBuilder, x: str) -> str:
    since = 21 if g.opset >= 21 else 18
    size = WIDTH if since == 21 else 2
    scale, shift = (g.constant(name, g.uniform(0.5, 1.5, size)) for name in ("scale", "shift"))
    return g.node("GroupNormalization", [x, scale, shift], [WIDTH, 8, 8], num_groups=2)


def _lrn(g: GraphBuilder, x: str) -> str:
    return g.node("LRN", [x], [WIDTH, 8, 8], size=3)


def _lp_normalization(g: GraphBuilder, x: str) -> str:
    return g.node("LpNormalization", [x], [WIDTH, 8, 8], axis=-1)


def _cum_sum(g: GraphBuilder, x: str) -> str:
    return g.node("CumSum", [x, g.constant("axis", np.array(3, np.int64))], [WIDTH, 8, 8])


def _quantize(g: GraphBuilder, x: str) -> str:
    scale, zero = g.constant("scale", np.float32(1 / 128)), g.constant("zero", np.uint8(3))
    y = g.node("QuantizeLinear", [x, scale, zero], [WIDTH, 8, 8])
    return g.node("DequantizeLinear", [y, scale, zero], [WIDTH, 8, 8])


def _recurrent(op: str, **attrs: object) -> Middle:
    """The columns of the image are the sequence; channels go in, hidden units come out, in one or both directions."""
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 5
    directions = 2 if attrs.get("direction") == "bidirectional" else 1

    def middle(g: GraphBuilder, x: str) -> str:
        pooled = g.node("ReduceMean", [x], [WIDTH, 8], axes=[2], keepdims=0)
        # The builder's shapes leave the batch axis out; here it comes second, so shapes are written as they are.
        g.nodes.append(helper.make_node("Transpose", [pooled], ["sequence"], name="by_column", perm=[2, 0, 1]))
        weights = [
            g.constant("W", g.normal(directions, gates * hidden, WIDTH)),
            g.constant("R", g.normal(directions, gates * hidden, hidden, std=0.5)),
            g.constant("B", g.normal(directions, 2 * gates * hidden)),
        ]
        if op == "LSTM":
            weights += ["", "", "", g.constant("P", g.normal(directions, 3 * hidden))]
        states = ["states", "last", "cell"] if op == "LSTM" else ["states", "last"]
        node = helper.make_node(op, ["sequence", *weights], states, name="recurrent", hidden_size=hidden, **attrs)
        g.nodes.append(node)
        g.nodes.append(helper.make_node("Transpose", ["last"], ["last_first"], perm=[1, 0, 2]))
        g.nodes.append(helper.make_node("Transpose", ["states"], ["states_first"], perm=[2, 1, 3, 0]))
        g.shapes["last_first"], g.shapes["states_first"] = (directions, hidden), (directions, hidden, 8)
        read = g.node("ReduceMax", ["states_first"], [directions, hidden], axes=[3], keepdims=0)
        total = g.add(read, "last_first")
        return g.node("ReduceSum", [total, g.constant("first", np.array([1], np.int64))], [hidden], keepdims=0)

    return middle


def _fused_conv(g: GraphBuilder, x: str) -> str:
    weight, bias = g.constant("weight", g.normal(WIDTH, WIDTH, 1, 1)), g.constant("bias", g.normal(WIDTH))
    inputs = [x, weight, bias, x]
    return g.node("FusedConv", inputs, [WIDTH, 8, 8], domain="com.microsoft", activation="Relu", kernel_shape=[1, 1])


def _fused_gemm(g: GraphBuilder, x: str) -> str:
    flat = g.flatten(g.global_average_pool(x))
    weight, bias = g.constant("weight", g.normal(8, WIDTH)), g.constant("bias", g.normal(8))
    return g.node("FusedGemm", [flat, weight, bias], [8], domain="com.microsoft", activation="Relu", transB=1)


def _fused_matmul(g: GraphBuilder, x: str) -> str:
    flat = g.flatten(g.global_average_pool(x))
    return g.node(
        "FusedMatMul", [flat, g.constant("weight", g.normal(WIDTH, 8))], [8], domain="com.microsoft", alpha=0.5
    )


def _microsoft_gelu(op: str, bias: bool = False) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        flat = g.flatten(g.global_average_pool(x))
        inputs = [flat, g.constant("gelu_bias", g.normal(WIDTH))] if bias else [flat]
        return g.node(op, inputs, [WIDTH], domain="com.microsoft")

    return middle


def _conv_transpose(g: GraphBuilder, x: str) -> str:
    dense = g.conv_transpose(x, 8)
    return g.conv_transpose(g.conv_transpose(dense, 8, groups=8), 8, groups=2)


def _matmul(g: GraphBuilder, x: str) -> str:
    """Constant on the left (mixing channels), then two activations, of which only the outer axes are channels."""
    flat = g.node("Reshape", [x, g.constant("target", np.array([0, WIDTH, 64], np.int64))], [WIDTH, 64])
    left = g.node("MatMul", [g.constant("left", g.normal(8, WIDTH)), flat], [8, 64])
    other = g.node("Transpose", [left], [64, 8], perm=[0, 2, 1])
    outer = g.node("MatMul", [flat, other], [WIDTH, 8])
    mixed = g.matmul_add(g.node("Transpose", [outer], [8, WIDTH], perm=[0, 2, 1]), 3)
    return g.node("ReduceMean", [mixed], [8], axes=[-1], keepdims=0)


def _gemm(g: GraphBuilder, x: str) -> str:
    return g.relu(g.gemm(g.flatten(x), 8, trans_b=False, alpha=0.5))


def _batch_norm(g: GraphBuilder, x: str) -> str:
    return g.batch_norm(x)


def _concat(g: GraphBuilder, x: str) -> str:
    return g.concat(x, g.conv("x", 4), x)


def _flatten(g: GraphBuilder, x: str) -> str:
    return g.flatten(x)


def _transpose(g: GraphBuilder, x: str) -> str:
    moved = g.node("Transpose", [x], [8, 8, WIDTH], perm=[0, 2, 3, 1])
    return g.node("Transpose", [g.relu(moved)], [WIDTH, 8, 8], perm=[0, 3, 1, 2])


def _cast_like(g: GraphBuilder, x: str) -> str:
    return g.node("CastLike", [x, "x"], g.shapes[x])


def _dropout(g: GraphBuilder, x: str) -> str:
    return g.node("Dropout", [x], g.shapes[x])


def _conv(g: GraphBuilder, x: str) -> str:
    return g.conv(g.conv(x, 2 * WIDTH, groups=WIDTH), 2 * WIDTH, groups=3)


def _simplified_layer_norm() -> onnx.ModelProto:
    model = _net("LayerNormalization", _norm_over_rows("LayerNormalization", 1), 17)
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            node.op_type = "SimplifiedLayerNormalization"
    return model


def _build_table() -> dict[str, Callable[[], onnx.ModelProto]]:
    table: dict[str, Callable[[], onnx.ModelProto]] = {}

    def add(name: str, op: str, middle: Middle, opset: int = 17) -> None:
        table[name] = lambda: _net(op, middle, opset)

    for op in UNARY:
        add(op, op, _unary(op))
    for op in BROADCASTS:
        add(op, op, _binary(op))
    for op in ("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"):
        add(op, op, _pool(op))
    for reduction in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"):
        op = f"Reduce{reduction}"
        for opset in (12, 18):
            for keepdims in (0, 1):
                add(f"{op}-{opset}-keepdims{keepdims}", op, _reduce(op, opset, keepdims), opset)
    for op in ("ArgMax", "ArgMin"):
        add(op, op, _arg(op))
    for opset in (10, 17, 18):
        add(f"Pad-{opset}", "Pad", _pad(opset), opset)
    for opset in (12, 13):
        add(f"Squeeze-Unsqueeze-{opset}", "Squeeze", _squeeze(opset), opset)
    for op, middle in {
        "BatchNormalization": _batch_norm, "CastLike": _cast_like, "Concat": _concat, "Conv": _conv,
        "ConvTranspose": _conv_transpose, "Dropout": _dropout, "Flatten": _flatten, "Gemm": _gemm, "MatMul": _matmul,
        "Reshape": _reshape, "Shape": _shape, "Size": _size, "Transpose": _transpose,
    }.items():  # fmt: skip
        add(op, op, middle)
    for op, middle in {
        "CumSum": _cum_sum, "Einsum": _einsum, "Expand": _expand, "FusedConv": _fused_conv, "FusedGemm": _fused_gemm,
        "FusedMatMul": _fused_matmul, "Gather": _gather, "GroupNormalization": _group_norm,
        "InstanceNormalization": _instance_norm, "LRN": _lrn, "LpNormalization": _lp_normalization,
        "QuantizeLinear": _quantize, "SpaceToDepth": _space_to_depth, "Tile": _tile, "TopK": _top_k,
        "LayerNormalization": _norm_over_rows("LayerNormalization", 2),
        "RMSNormalization": _norm_over_rows("RMSNormalization", 1),
        "BiasGelu": _microsoft_gelu("BiasGelu", bias=True), "FastGelu": _microsoft_gelu("FastGelu"),
        "QuickGelu": _microsoft_gelu("QuickGelu"),
        "SkipLayerNormalization": _skip_norm("SkipLayerNormalization"),
        "SkipSimplifiedLayerNormalization": _skip_norm("SkipSimplifiedLayerNormalization"),
    }.items():  # fmt: skip
        add(op, op, middle)
    table["SimplifiedLayerNormalization"] = _simplified_layer_norm
    add("Gelu-microsoft", "Relu", _microsoft_gelu("Gelu"))
    for mode in ("DCR", "CRD"):
        add(f"DepthToSpace-{mode}", "DepthToSpace", _depth_to_space(mode))
    for opset in (12, 17):
        for op in ("Hardmax", "LogSoftmax", "Softmax"):
            add(f"{op}-{opset}", op, _softmax(op), opset)
        add(f"Split-{opset}", "Split", _split(opset), opset)
    for opset in (12, 17, 18):
        add(f"Split-equal-{opset}", "Split", _split(opset, equal=True), opset)
    for opset in (9, 17):
        add(f"Slice-{opset}", "Slice", _slice(opset), opset)
    for opset in (8, 9):
        add(f"Upsample-{opset}", "Upsample", _resize(opset), opset)
    for opset in (10, 13, 18):
        add(f"Resize-{opset}", "Resize", _resize(opset), opset)
    add("Resize-sizes", "Resize", _resize(17, sizes=True))
    add("Shuffle", "Transpose", _shuffle)
    add("Gather-order", "Gather", _gather_order)
    add("Trilu", "Trilu", lambda g, x: g.node("Trilu", [x], g.shapes[x]))
    for op in ("LSTM", "GRU", "RNN"):
        add(op, op, _recurrent(op))
        add(f"{op}-bidirectional", op, _recurrent(op, direction="bidirectional"))
    add("PRelu", "PRelu", lambda g, x: g.prelu(_plus(g, x, -0.5)))
    return table


RULE_MODELS = _build_table()

#: Channels end at these; the word stands in the reason.
BLOCKING = {"GroupNormalization": "mean and variance", "LRN": "neighbours"}

#: onnx's checker does not know the operator, which onnxruntime nevertheless writes into the default domain.
UNKNOWN_TO_ONNX = {"SimplifiedLayerNormalization"}

#: Written in a form that only the normalised graph can be widened in.
NEEDS_NORMAL_FORM = {"Shuffle", "Split-equal-12", "Split-equal-17", "Split-equal-18"}
