"""Dimensions that are learned at several sizes of the inputs, and what a view tells of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.channels import find_groups
from onnxfold.export.fusion import PREPARE
from onnxfold.graph.files.load import load
from onnxfold.graph.shapes.shape_inference import symbolic_types
from onnxfold.graph.view import GraphView
from onnxfold.passes.normalize.constants import FoldConstants, LiftConstants
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.passes.normalize.shapes import LearnShapes


def _view(body: str, inputs: str, opset: int = 17) -> GraphView:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => (float y)'
    model = onnx.parser.parse_model(text + "{" + body + "}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    view = load(model)
    LiftConstants()(view)
    FoldConstants()(view)
    return view


def _mask(inputs: str) -> GraphView:
    """Rows and columns of a mask from the lengths of x and past, expanded as exporters write it."""
    return _view(
        """
        two = Constant <value_ints = [2]> ()
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        none = Constant <value_ints = [-1]> ()
        first = Constant <value_ints = [0]> ()
        rows = Shape <start = 0, end = 1> (x)
        before = Shape <start = 0, end = 1> (past)
        columns = Add (rows, before)
        count = Squeeze (columns)
        numbers = Range (zero, count, one)
        asked = Concat <axis = 0> (rows, none)
        all = Equal (asked, none)
        ones = ConstantOfShape <value = int64[1] {1}> (two)
        target = Where (all, ones, asked)
        across = Unsqueeze (numbers, first)
        mask = Expand (across, target)
        y = Cast <to = 1> (mask)
        """,
        inputs,
    )


def test_symbols_and_sums_of_symbols() -> None:
    view = _mask("float[sequence, 6] x, float[past_sequence, 6] past, float[total_sequence] other")
    assert "" in view.symbols("mask") or "total_sequence" not in view.symbols("mask")
    assert LearnShapes()(view).modified
    assert view.shape("y") == (None, None)
    assert view.symbols("mask") == view.symbols("y") == ("sequence", "total_sequence")
    assert not LearnShapes()(view).modified


def test_equal_lengths_have_equal_symbols() -> None:
    """The sum is no input's length, but it is the same for every tensor that has it."""
    view = _mask("float[sequence, 6] x, float[past_sequence, 6] past")
    LearnShapes()(view)
    assert view.symbols("mask")[1] == view.symbols("numbers")[0] != ""


def test_lengths_without_a_name_are_not_told_apart() -> None:
    view = _mask("float[M, 6] x, float[N, 6] past")
    for info in view.graph.input:
        info.type.tensor_type.shape.dim[0].ClearField("dim_param")
    view.assume({})
    LearnShapes()(view)
    assert view.shape("mask") == (None, None)
    assert not any(s.startswith(("length", "onnxfold")) for s in view.symbols("mask"))


def test_numbers_for_symbols_hold_for_what_was_learned() -> None:
    view = _mask("float[sequence, 6] x, float[past_sequence, 6] past, float[total_sequence] other")
    LearnShapes()(view)
    view.assume({"x": (5, 6), "past": (2, 6), "other": (7,)})
    assert view.shape("mask") == (5, 7)
    assert view.copy().shape("mask") == (5, 7)


@pytest.mark.parametrize("sizes", [{}, {"x": (5, 6)}])
def test_what_was_learned_is_forgotten_with_declared_shapes(sizes: dict[str, tuple[int, ...]]) -> None:
    view = _mask("float[sequence, 6] x, float[past_sequence, 6] past, float[total_sequence] other")
    view.assume(sizes)
    before = view.symbols("mask")
    LearnShapes()(view)
    view.drop_inferable_infos()
    assert [bool(s) for s in view.symbols("mask")] == [bool(s) for s in before]
    assert not view.learned_types


def test_learned_types_reach_what_is_inferred_from_them() -> None:
    view = _mask("float[sequence, 6] x, float[past_sequence, 6] past")
    assert view.learn({"mask": (TensorProto.INT64, (3, None), ("", "sequence"))})
    assert (view.shape("y"), view.symbols("y")) == ((3, None), ("", "sequence"))
    assert not view.learn({"mask": (TensorProto.INT64, (3, None), ("", "sequence"))})


@pytest.mark.parametrize("sizes", ["-1, 3, -1, -1", "n, 3, h, w", "2, 3, 8, 8"])
def test_what_paddle_writes(sizes: str) -> None:
    """Dimensions of -1 are free, and Concat counts its axis from the back before operator set 11."""
    text = f"""<ir_version: 7, opset_import: ["" : 10]> g (float[{sizes.replace("-1", "m")}] x) => (float[m, m, 5] y)
        <int64[1] start = {{0}}, int64[1] end = {{2}}, int64[1] rest = {{-1}}>
    {{
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        all = Shape (c)
        first = Slice (all, start, end)
        target = Concat <axis = -1> (first, rest)
        flat = Reshape (c, target)
        rows = Transpose <perm = [0, 2, 1]> (flat)
        m = MatMul (rows, v)
        twice = Concat <axis = -1> (m, m)
        y = MatMul (twice, u)
    }}"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, shape in {"w": (6, 3, 3, 3), "v": (6, 4), "u": (8, 5)}.items():
        model.graph.initializer.append(numpy_helper.from_array(random.random(shape, np.float32), name))
    for info in (*model.graph.input, *model.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param == "m":
                dim.dim_value = -1
    view = load(model)
    NORMALIZE(view)
    assert (view.shape("twice") or ())[2:] == (8,)
    assert [g.size for g in find_groups(view).groups] == [6, 4]


def _products(count: int) -> str:
    """Return matrix products of higher rank as TensorFlow writes them; every shape is computed from the one before."""
    body = "x0 = Identity (x) last = Constant <value_ints = [6]> ()"
    for i in range(count):
        body += f"""
            shape{i} = Shape (x{i})
            outer{i} = Slice (shape{i}, start, end)
            count_of{i} = ReduceProd <axes = [0], keepdims = 0> (outer{i})
            count{i} = Unsqueeze <axes = [0]> (count_of{i})
            inner{i} = Concat <axis = 0> (count{i}, last)
            flat{i} = Reshape (x{i}, inner{i})
            active{i} = Relu (flat{i})
            first{i} = Slice (shape{i}, start, middle)
            second{i} = Slice (shape{i}, middle, end)
            batch_of{i} = ReduceProd <axes = [0], keepdims = 0> (first{i})
            batch{i} = Unsqueeze <axes = [0]> (batch_of{i})
            length_of{i} = ReduceProd <axes = [0], keepdims = 0> (second{i})
            length{i} = Unsqueeze <axes = [0]> (length_of{i})
            back{i} = Concat <axis = 0> (batch{i}, length{i}, last)
            x{i + 1} = Reshape (active{i}, back{i})
        """
    body += "".join(f"{name} = Constant <value_ints = [{i}]> ()" for i, name in enumerate(("start", "middle", "end")))
    return f"{body} y = Relu (x{count})"


def test_many_reshapes_one_behind_the_other() -> None:
    pytest.importorskip("sympy")
    view = _view(_products(12), "float[n, sequence, 6] x", opset=12)
    assert view.shape("y") is None
    LearnShapes()(view)
    assert (view.shape("y"), view.symbols("y")[:2]) == ((None, None, 6), ("n", "sequence"))


def test_an_export_knows_them_too() -> None:
    """A batch of TensorFlow's products is folded as far as its free batch lets it."""
    pytest.importorskip("sympy")
    view = _view(_products(12), "float[n, 4, 6] x", opset=12)
    PREPARE(view)
    assert "Shape" not in {node.op_type for node in view.nodes}


def test_sides_of_images_with_channels_last_are_no_ones() -> None:
    """Small heights were 1 behind four poolings at all three sizes, and a Reshape got that number: no fold ran."""
    pools = "\n".join(
        f'p{i + 1} = MaxPool <kernel_shape = [2, 2], strides = [2, 2], auto_pad = "SAME_UPPER"> (p{i})'
        for i in range(5)
    )
    view = _view(
        f"""
        p0 = Transpose <perm = [0, 3, 1, 2]> (x)
        {pools}
        size = Shape (p5)
        ones = ConstantOfShape <value = float[1] {{1}}> (size)
        shifted = Add (p5, ones)
        y = Relu (shifted)
        """,
        "float[n, h, w, 3] x",
    )
    LearnShapes()(view)
    assert view.shape("y") in ((None, 3, None, None), None)


def test_what_follows_from_a_target_that_the_tool_lost_a_number_of_is_not_learned() -> None:
    """PaddlePaddle reshapes a length to a scalar, which onnxruntime's symbolic inference then leaves out."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["sizes"]), node("Slice", ["sizes", "one", "two", "zero"], ["slice"]),
        node("Squeeze", ["slice", "zero"], ["number"]), node("Reshape", ["number", "none"], ["scalar"]),
        node("Unsqueeze", ["scalar", "zero"], ["length"]),
        node("Concat", ["zero", "one", "length", "width"], ["target"], axis=0),
        node("Relu", ["x"], ["r"]), node("Reshape", ["r", "target"], ["image"]),
        node("Transpose", ["image"], ["y"], perm=[0, 3, 1, 2]),
    ]  # fmt: skip
    numbers = {"zero": [0], "one": [1], "two": [2], "width": [4], "none": []}
    weights = [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in numbers.items()]
    x, y = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", ["n", "length", 4]), ("y", None)))
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    view = load(model)
    types = symbolic_types(view.model, view.weights, {"n", "length"})
    assert "target" in types
    assert not {"image", "y"} & set(types)
