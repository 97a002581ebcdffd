"""Small graphs as exporters write lengths, views and products around attention."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.passes.seams.tables import SplitProjections


def _parsed(body: str, shape: str, constants: str = "") -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float{shape} x) => (float y) <{constants}>'
    model = onnx.parser.parse_model(text + "{" + body + "}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def lengths_by_range() -> onnx.ModelProto:
    """The number of its sample is added to every one."""
    return _parsed(
        """
        sizes = Shape <start = 0, end = 1> (x)
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        count = Squeeze (sizes)
        numbers = Range (zero, count, one)
        places = Constant <value_ints = [1]> ()
        column = Unsqueeze (numbers, places)
        added = Cast <to = 1> (column)
        y = Add (x, added)
        """,
        "[N, 6]",
    )


def keys_turned_by_views() -> onnx.ModelProto:
    """As the dynamo exporter writes the transposition of keys."""
    return _parsed(
        """
        sizes = Shape <start = 0, end = 1> (x)
        inner = Constant <value_ints = [-1, 8, 4]> ()
        flat = Reshape (x, inner)
        turned = Transpose <perm = [0, 2, 1]> (flat)
        rest = Constant <value_ints = [3, 4, 8]> ()
        target = Concat <axis = 0> (sizes, rest)
        y = Reshape <allowzero = 1> (turned, target)
        """,
        "[N, 3, 8, 4]",
    )


def heads_of_multi_head_attention() -> onnx.ModelProto:
    """As torch's MultiheadAttention gives heads an axis: sequence first, batch and heads on one axis."""
    return _parsed(
        """
        front = Transpose <perm = [1, 0, 2]> (x)
        flat = Reshape (front, views)
        turned = Transpose <perm = [1, 0, 2]> (flat)
        sizes = Shape <start = 0, end = 1> (x)
        target = Concat <axis = 0> (sizes, rest)
        y = Reshape (turned, target)
        """,
        "[N, 7, 24]",
        "int64[3] views = {7, -1, 8}, int64[3] rest = {3, 7, 8}",
    )


def turned_beside_ones() -> onnx.ModelProto:
    """An axis of size one takes the place of another."""
    return _parsed(
        """
        apart = Unsqueeze (x, front)
        turned = Transpose <perm = [2, 1, 0, 3]> (apart)
        y = Squeeze (turned, behind)
        """,
        "[N, 3, 24]",
        "int64[1] front = {0}, int64[1] behind = {2}",
    )


def repeated_heads() -> onnx.ModelProto:
    """As exporters give every query head its keys."""
    return _parsed(
        """
        sizes = Shape <start = 0, end = 1> (x)
        place = Constant <value_ints = [2]> ()
        apart = Unsqueeze (x, place)
        inner = Constant <value_ints = [2, 3, 8, 4]> ()
        wide = Concat <axis = 0> (sizes, inner)
        repeated = Expand (apart, wide)
        rest = Constant <value_ints = [6, 8, 4]> ()
        target = Concat <axis = 0> (sizes, rest)
        y = Reshape (repeated, target)
        """,
        "[N, 2, 8, 4]",
    )


def normed_heads() -> onnx.ModelProto:
    """As onnxruntime-genai gives every head a norm."""
    return _parsed(
        """
        rows = Reshape (x, apart)
        normed = LayerNormalization <axis = 2> (rows, scale)
        y = Reshape (normed, together)
        """,
        "[N, 5, 8]",
        "int64[3] apart = {0, -1, 4}, int64[3] together = {0, -1, 8}, float[4] scale = {1, 0.5, 2, 1.5}",
    )


def packed_attention() -> onnx.ModelProto:
    """As the attention of ViTs takes queries and values out of one product; the last part is not read."""
    return _parsed(
        """
        parts = Reshape (x, apart)
        turned = Transpose <perm = [2, 0, 3, 1, 4]> (parts)
        queries = Gather (turned, first)
        values = Gather (turned, last)
        y = Add (queries, values)
        """,
        "[N, 5, 24]",
        "int64[5] apart = {0, 0, 3, 2, 4}, int64 first = {0}, int64 last = {-1}",
    )


def heads_in_batch() -> onnx.ModelProto:
    """As BART and its kin multiply: batch and heads on one axis, apart for the mask alone."""
    return _parsed(
        """
        sizes = Shape <start = 0, end = 1> (x)
        flat = Reshape (x, joined)
        halved = Mul (flat, half)
        turned = Transpose <perm = [0, 2, 1]> (flat)
        scores = MatMul (halved, turned)
        rest = Constant <value_ints = [2, 5, 5]> ()
        target = Concat <axis = 0> (sizes, rest)
        apart = Reshape (scores, target)
        masked = Add (apart, mask)
        again = Reshape (masked, square)
        weights = Softmax <axis = -1> (again)
        mixed = MatMul (weights, flat)
        last = Constant <value_ints = [2, 5, 4]> ()
        back = Concat <axis = 0> (sizes, last)
        heads = Reshape (mixed, back)
        y = Transpose <perm = [0, 2, 1, 3]> (heads)
        """,
        "[N, 2, 5, 4]",
        "int64[3] joined = {-1, 5, 4}, int64[3] square = {-1, 5, 5}, float half = {0.5}, float mask = {-1.0}",
    )


def heads_in_batch_behind_positions() -> onnx.ModelProto:
    """As torch's MultiheadAttention that gives its weights: positions, batch and heads, size."""
    return _parsed(
        """
        front = Transpose <perm = [1, 0, 2]> (x)
        flat = Reshape (front, joined)
        queries = Transpose <perm = [1, 0, 2]> (flat)
        keys = Transpose <perm = [1, 2, 0]> (flat)
        scores = MatMul (queries, keys)
        weights = Softmax <axis = -1> (scores)
        mixed = MatMul (weights, queries)
        turned = Transpose <perm = [1, 0, 2]> (mixed)
        y = Reshape (turned, rows)
        """,
        "[N, 5, 6]",
        "int64[3] joined = {5, -1, 3}, int64[2] rows = {-1, 6}",
    )


def packed_projections() -> onnx.ModelProto:
    """Attention that reads a packed projection of queries, keys and values with a bias, behind three cached words."""
    random, size, heads, shared, length, past = np.random.default_rng(0), 8, 4, 2, 5, 3
    weights = {
        "qkv": random.standard_normal((16, (heads + 2 * shared) * size)).astype(np.float32),
        "qkv_bias": random.standard_normal((heads + 2 * shared) * size).astype(np.float32),
        "lengths": np.array([past + length - 1], np.int32),
        "total": np.array(past + length, np.int32),
    }
    inputs = {"x": [1, length, 16], "past_key": [1, shared, past, size], "past_value": [1, shared, past, size]}
    sizes = {name: [1, shared, past + length, size] for name in ("present_key", "present_value")}
    outputs = {"y": [1, length, heads * size], **sizes}
    read = ["projected", "", "", "past_key", "past_value", "lengths", "total"]
    nodes = [
        helper.make_node("MatMul", ["x", "qkv"], ["product"], "project"),
        helper.make_node("Add", ["qkv_bias", "product"], ["projected"], "shift"),
        helper.make_node(
            "GroupQueryAttention", read, list(outputs), "attend",
            domain="com.microsoft", num_heads=heads, kv_num_heads=shared,
        ),
    ]  # fmt: skip
    infos = [
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in found.items()]
        for found in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(values, name) for name, values in weights.items()]
    graph = helper.make_graph(nodes, "attention", *infos, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def split_projections() -> onnx.ModelProto:
    """The same, queries projected by themselves."""
    view = load(packed_projections())
    SplitProjections()(view)
    return to_model(view)


ATTENTION_FORMS = {
    form.__name__: form
    for form in (
        lengths_by_range,
        keys_turned_by_views,
        heads_of_multi_head_attention,
        turned_beside_ones,
        repeated_heads,
        normed_heads,
        packed_attention,
        heads_in_batch,
        heads_in_batch_behind_positions,
        packed_projections,
        split_projections,
    )
}
