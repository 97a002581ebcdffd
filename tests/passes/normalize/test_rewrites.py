"""Where the rewriting passes must, or must not, do something: shuffles, splits, frozen shapes, folded constants."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.passes.base import Pass
from onnxfold.passes.normalize.constants import FoldConstants, LiftConstants
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.passes.normalize.shapes import FreezeReshapes, WriteSplitSizes
from onnxfold.passes.normalize.unneeded import DropZeroBias, RemoveUnused, UnshareInitializers
from onnxfold.passes.views.reshapes import ShufflesToGather
from testing.models import random_input, run
from testing.quick import quick_fold

Shape = list[int | str]


def _model(
    nodes: list[onnx.NodeProto],
    shape: Shape,
    constants: dict[str, object] | None = None,
    outputs: tuple[str, ...] = ("y",),
    opset: int = 17,
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    results = [onnx.ValueInfoProto(name=o) for o in outputs]
    weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", infos, results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _runs_alike(model: onnx.ModelProto, step: Pass, modified: bool, op_types: list[str]) -> onnx.ModelProto:
    """Run a pass; check whether it acted, what the graph consists of, and that the outputs are the same, bit by bit."""
    view = load(model)
    assert step(view).modified is modified
    assert [n.op_type for n in view.nodes] == op_types
    after = to_model(view)
    onnx.checker.check_model(after, full_check=True)
    feeds = random_input(model, 0)
    for a, b in zip(run(model, feeds), run(after, feeds), strict=True):
        np.testing.assert_array_equal(a, b)
    return after


# -- ShufflesToGather ----------------------------------------------------------------------------

#: Input shape, inner shape, permutation, last shape, and the axis that is permuted (None: no shuffle).
SHUFFLES: dict[str, tuple[Shape, list[int], list[int], list[int], int | None]] = {
    "channels": (["N", 6, 4, 4], [0, 2, 3, 4, 4], [0, 2, 1, 3, 4], [0, 6, 4, 4], 1),
    "channels, -1": (["N", 6, 4, 4], [-1, 2, 3, 4, 4], [0, 2, 1, 3, 4], [-1, 6, 4, 4], 1),
    "last axis": (["N", 5, 6], [0, 5, 3, 2], [0, 1, 3, 2], [0, 5, 6], 2),
    "three factors": (["N", 12], [0, 2, 3, 2], [0, 3, 2, 1], [0, 12], 1),
    "stand-in looks like the batch": (["N", 9, 3], [0, 3, 3, 3], [0, 2, 1, 3], [0, 9, 3], 1),
    "nothing moves": (["N", 6, 4], [0, 2, 3, 4], [0, 1, 2, 3], [0, 6, 4], 1),
    "channels and space": (["N", 4, 4, 4], [0, 2, 2, 4, 4], [0, 1, 3, 2, 4], [0, 4, 4, 4], None),
    "windows": (["N", 4, 4], [0, 2, 2, 2, 2], [0, 1, 3, 2, 4], [0, 4, 4], None),
    "transpose of the image": (["N", 6, 4, 4], [0, 2, 3, 4, 4], [0, 2, 1, 4, 3], [0, 6, 4, 4], None),
    "another shape": (["N", 6, 4], [0, 2, 3, 4], [0, 2, 1, 3], [0, 3, 8], None),
    "batch": ([6, 4], [2, 3, 4], [1, 0, 2], [6, 4], 0),
}


def _shuffle(name: str) -> onnx.ModelProto:
    shape, inner, perm, last, _ = SHUFFLES[name]
    nodes = [
        helper.make_node("Reshape", ["x", "inner"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=perm),
        helper.make_node("Reshape", ["b", "last"], ["y"]),
    ]
    return _model(nodes, shape, {"inner": np.array(inner), "last": np.array(last)})


@pytest.mark.parametrize("name", SHUFFLES)
def test_shuffles(name: str) -> None:
    axis = SHUFFLES[name][-1]
    ops = ["Reshape", "Transpose", "Reshape"] if axis is None else ["Gather"]
    after = _runs_alike(_shuffle(name), ShufflesToGather(), axis is not None, ops)
    if axis is not None:
        assert after.graph.node[0].attribute[0].i == axis


@pytest.mark.parametrize("single", [1, 2, 3])
def test_an_axis_of_one_that_views_move_is_moved(single: int) -> None:
    """Which of the axes of one number is which nobody sees; onnxruntime did not load what came of it."""
    shape: Shape = [5, 17, 8]
    shape.insert(single, 1)
    nodes = [
        helper.make_node("Reshape", ["x", "inner"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["b", "last"], ["y"]),
    ]
    model = _model(nodes, shape, {"inner": np.array([1, 5, 17, 1, 8]), "last": np.array([1, 17, 5, 8])})
    after = _runs_alike(model, NORMALIZE, True, ["Transpose"])
    assert run(after, random_input(model, 0))[0].shape[:2] == (1, 17)


@pytest.mark.parametrize("read", ["a", "b"])
def test_a_shuffle_that_is_read_inside_stays(read: str) -> None:
    model = _shuffle("channels")
    model.graph.node.append(helper.make_node("Relu", [read], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    _runs_alike(inferred, ShufflesToGather(), False, ["Reshape", "Transpose", "Reshape", "Relu"])


def test_a_shuffle_whose_inner_result_is_an_output_stays() -> None:
    model = _shuffle("channels")
    model.graph.output.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, None))
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    _runs_alike(inferred, ShufflesToGather(), False, ["Reshape", "Transpose", "Reshape"])


def test_a_rewrite_says_why_nodes_stay() -> None:
    for name, why in (("windows", "axis 1"), ("another shape", "put them together again"), ("batch", "")):
        reasons = ShufflesToGather()(load(_shuffle(name))).reasons
        assert why in reasons["y"] if why else "y" not in reasons
    model = _shuffle("channels")
    model.graph.output.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, None))
    assert ShufflesToGather()(load(model)).reasons["y"] == "others read 'a', too"


# -- WriteSplitSizes -----------------------------------------------------------------------------


@pytest.mark.parametrize(("opset", "attrs"), [(12, {}), (13, {}), (18, {"num_outputs": 3})])
@pytest.mark.parametrize("axis", [1, -1])
def test_split_sizes_are_written(opset: int, attrs: dict[str, int], axis: int) -> None:
    node = helper.make_node("Split", ["x"], ["a", "b", "c"], axis=axis, **attrs)
    width = 7 if opset == 18 else 6  # num_outputs allows a shorter last part
    model = _model([node], ["N", 2, width] if axis < 0 else ["N", width, 2], outputs=("a", "b", "c"), opset=opset)
    after = _runs_alike(model, WriteSplitSizes(), True, ["Split"])
    (split,) = after.graph.node
    sizes = next((list(a.ints) for a in split.attribute if a.name == "split"), None)
    if sizes is None:
        sizes = numpy_helper.to_array(after.graph.initializer[0]).tolist()
    assert sizes == ([3, 3, 1] if opset == 18 else [2, 2, 2])
    assert not any(a.name == "num_outputs" for a in split.attribute)


def test_split_of_an_unknown_axis_stays() -> None:
    model = _model([helper.make_node("Split", ["x"], ["a", "b"], axis=1)], [2, "C"], outputs=("a", "b"), opset=13)
    assert not WriteSplitSizes()(load(model)).modified


# -- FreezeReshapes ------------------------------------------------------------------------------


def _view(sizes: list[int | None], shape: Shape) -> onnx.ModelProto:
    """Build ``x.view(...)``: None stands for x.size(i) at place i."""
    nodes, parts, constants = [helper.make_node("Shape", ["x"], ["sizes"])], [], {}
    for i, size in enumerate(sizes):
        if size is None:
            constants[f"i{i}"] = np.array([i])
            nodes.append(helper.make_node("Gather", ["sizes", f"i{i}"], [f"s{i}"], axis=0))
        else:
            constants[f"s{i}"] = np.array([size])
        parts.append(f"s{i}")
    nodes.append(helper.make_node("Concat", parts, ["target"], axis=0))
    nodes.append(helper.make_node("Reshape", ["x", "target"], ["y"]))
    return _model(nodes, shape, constants)


FROZEN = {
    "flatten": (_view([None, -1], ["N", 6, 4, 4]), [0, -1]),
    "keep two": (_view([None, None, -1], ["N", 6, 4, 4]), [0, 6, -1]),
    "known": (_view([2, -1], [2, 6, 4]), [2, 24]),
    "two symbols": (_view([None, None, -1], ["N", "C", 4, 4]), [0, 0, -1]),
}


@pytest.mark.parametrize("name", FROZEN)
def test_computed_shapes_are_frozen(name: str) -> None:
    model, expected = FROZEN[name]
    view = load(model)
    assert FreezeReshapes()(view).modified
    RemoveUnused()(view)
    (node,) = view.nodes
    assert view.weight(node.input[1]).tolist() == expected
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 6, 4, 4)[: 3 if name == "known" else 4])}
    feeds = {"x": feeds["x"].astype(np.float32)}
    np.testing.assert_array_equal(run(model, feeds)[0], run(to_model(view), feeds)[0])


def test_a_shape_that_depends_on_two_unknowns_stays() -> None:
    """A size of the input at another place, and a rest that is unknown as well."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "one"], ["height"], axis=0),
        helper.make_node("Concat", ["height", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    model = _model(nodes, ["N", "H", "W"], {"one": np.array([1]), "rest": np.array([-1])})
    assert not FreezeReshapes()(load(model)).modified


def test_frames_of_short_recordings_are_no_constant() -> None:
    """One frame at the lengths that shapes are learned at was one at any length: a pitch tracker gave no other."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[256], pads=[4, 4]),
        helper.make_node("Shape", ["c"], ["s"]),
        helper.make_node("Slice", ["s", "two", "three"], ["frames"]),
        helper.make_node("Concat", ["front", "frames"], ["target"], axis=0),
        helper.make_node("Reshape", ["c", "target"], ["y"]),
    ]
    constants = {"w": np.ones((4, 1, 8), np.float32), "two": [2], "three": [3], "front": [1, 4]}
    model = _model(nodes, [1, 1, "t"], constants)
    view = load(model)
    NORMALIZE(view)
    x = np.random.default_rng(0).normal(size=(1, 1, 1024)).astype(np.float32)
    np.testing.assert_array_equal(run(to_model(view), {"x": x})[0], run(model, {"x": x})[0])
    assert run(to_model(view), {"x": x})[0].shape == (1, 4, 5)


def test_assumed_input_shapes_are_not_written_into_the_model() -> None:
    model = _view([None, -1], ["N", 6, 4, 4])
    view = load(model, {"x": (5, 6, 4, 4)})
    FoldConstants()(view)
    FreezeReshapes()(view)
    assert view.input_shapes == {"x": (5, 6, 4, 4)}
    feeds = {"x": np.zeros((2, 6, 4, 4), np.float32)}
    assert run(to_model(view), feeds)[0].shape == (2, 96)


# -- FoldConstants and friends -------------------------------------------------------------------


def test_chains_over_constants_become_weights() -> None:
    """As the unoptimised dynamo export writes them: Shape, Expand, CastLike, Unsqueeze, Transpose."""
    nodes = [
        helper.make_node("Shape", ["w"], ["sizes"]),
        helper.make_node("Expand", ["half", "sizes"], ["halves"]),
        helper.make_node("CastLike", ["halves", "x"], ["cast"]),
        helper.make_node("Mul", ["cast", "w"], ["scaled"]),
        helper.make_node("Transpose", ["scaled"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
    ]
    weights = {"w": np.ones((4, 3), np.float32), "half": np.float32(0.5)}
    _runs_alike(_model(nodes, ["N", 3], weights), FoldConstants(), True, ["MatMul"])


def test_shape_of_a_known_activation_is_a_constant() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Shape", ["r"], ["sizes"], start=1),
        helper.make_node("Cast", ["sizes"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["r", "floats"], ["y"]),
    ]
    _runs_alike(_model(nodes, ["N", 1]), FoldConstants(), True, ["Relu", "Add"])


def test_what_differs_from_run_to_run_is_not_a_constant() -> None:
    nodes = [
        helper.make_node("RandomNormal", [], ["noise"], shape=[3], dtype=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    assert not FoldConstants()(load(_model(nodes, ["N", 3]))).modified


def test_quantised_weights_stay_quantised() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    weights = {"q": np.ones((3, 4), np.int8), "scale": np.float32(0.1), "zero": np.int8(0)}
    assert not FoldConstants()(load(_model(nodes, ["N", 3], weights))).modified


def test_nothing_large_is_materialised() -> None:
    nodes = [
        helper.make_node("Expand", ["one", "sizes"], ["ones"]),
        helper.make_node("Add", ["x", "ones"], ["y"]),
    ]
    weights = {"one": np.float32(1), "sizes": np.array([1000, 1000])}
    assert not FoldConstants()(load(_model(nodes, ["N", 1000, 1000], weights))).modified


def test_a_constant_may_not_be_larger_than_all_weights() -> None:
    """A network of few weights computes a window of 300 kB: as a weight, it would be more than a fold takes."""
    nodes = [
        helper.make_node("Range", ["zero", "stop", "step"], ["places"]),
        helper.make_node("Unsqueeze", ["places", "last"], ["column"]),
        helper.make_node("Mul", ["column", "row"], ["phases"]),
        helper.make_node("Cos", ["phases"], ["window"]),
        helper.make_node("MatMul", ["x", "window"], ["y"]),
    ]
    numbers = {"zero": np.float32(0), "stop": np.float32(300), "step": np.float32(1), "last": np.array([1])}
    weights = numbers | {"row": np.linspace(0, 1, 250, dtype=np.float32)}
    _runs_alike(_model(nodes, ["N", 300], weights), FoldConstants(share=1 / 16), True, ["Mul", "Cos", "MatMul"])
    of_a_large_one = weights | {"words": np.ones((250, 8000), np.float32)}
    nodes.append(helper.make_node("MatMul", ["y", "words"], ["z"]))
    view = load(_model(nodes, ["N", 300], of_a_large_one, outputs=("z",)))
    assert FoldConstants(share=1 / 16)(view).modified
    assert view.is_weight("window")


@pytest.mark.parametrize("tied", [False, True])
def test_a_large_weight_is_not_stored_twice(tied: bool) -> None:
    """A tied table of words: one reader looks rows up, the other multiplies by the transposed table."""
    nodes = [
        helper.make_node("Cast", ["x"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table" if tied else "words", "ids"], ["looked_up"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["looked_up", "turned"], ["y"]),
    ]
    table = np.random.default_rng(0).normal(size=(2000, 300)).astype(np.float32)
    view = load(_model(nodes, ["N", 1], {"table": table} if tied else {"table": table, "words": table[::-1].copy()}))
    assert FoldConstants()(view).modified is not tied
    assert view.is_weight("turned") is not tied


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"value_float": 2.5}, np.float32(2.5)),
        ({"value_floats": [1.0, 2.0]}, np.array([1, 2], np.float32)),
        ({"value_int": 3}, np.int64(3)),
        ({"value_ints": [3, 4]}, np.array([3, 4])),
        ({"value": numpy_helper.from_array(np.array([[7.0]], np.float64), "")}, np.array([[7.0]])),
    ],
)
def test_every_kind_of_constant_is_lifted(value: dict[str, object], expected: np.ndarray) -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], **value),
        helper.make_node("Shape", ["c"], ["y"]),
        helper.make_node("Relu", ["x"], ["z"]),
    ]
    view = load(_model(nodes, ["N"], outputs=("y", "z")))
    assert LiftConstants()(view).modified
    np.testing.assert_array_equal(view.weight("c"), expected)
    assert view.weight("c").dtype == np.asarray(expected).dtype


ZERO_BIAS: dict[str, tuple[Callable[[], list[onnx.NodeProto]], bool]] = {
    "zero": (lambda: [helper.make_node("Gemm", ["x", "w", "zero"], ["y"])], True),
    "not zero": (lambda: [helper.make_node("Gemm", ["x", "w", "one"], ["y"])], False),
    "none": (lambda: [helper.make_node("Gemm", ["x", "w"], ["y"])], False),
}


@pytest.mark.parametrize("name", ZERO_BIAS)
def test_zero_biases_are_dropped(name: str) -> None:
    nodes, modified = ZERO_BIAS[name]
    weights = {"w": np.ones((3, 2), np.float32), "zero": np.zeros(2, np.float32), "one": np.ones(2, np.float32)}
    _runs_alike(_model(nodes(), ["N", 3], weights), DropZeroBias(), modified, ["Gemm"])


def test_matrices_stay_shared_and_vectors_do_not() -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Gemm", ["h", "w", "b"], ["y"]),
    ]
    weights = {"w": np.eye(3, dtype=np.float32), "b": np.ones(3, np.float32)}
    view = load(_model(nodes, ["N", 3], weights))
    assert UnshareInitializers()(view).modified
    first, second = view.nodes
    assert first.input[1] == second.input[1]
    assert first.input[2] != second.input[2]


def test_dead_weights_do_not_survive_a_fold() -> None:
    """The parameters counted before and after are those that something depends on."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((8, 8)).astype(np.float32) for i in range(3)}
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("MatMul", ["h", "w1"], ["y"]),
        helper.make_node("MatMul", ["h", "w2"], ["dead"]),
    ]
    result = quick_fold(_model(nodes, ["N", 8], weights), channel_ratio=0.5)
    assert result.report.before.parameters == 2 * 64
    assert result.report.after.parameters == 2 * 32
    assert len(result.model.graph.initializer) == 2


# -- the order of passes -------------------------------------------------------------------------


def test_heads_are_repeated_by_a_gather_right_behind_their_view() -> None:
    """The views in front of a repetition of values, which nothing turns, are not moved into it."""
    nodes = [
        helper.make_node("Reshape", ["x", "heads"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3]),
        helper.make_node("Unsqueeze", ["b", "axis"], ["c"]),
        helper.make_node("Expand", ["c", "wide"], ["d"]),
        helper.make_node("Reshape", ["d", "flat"], ["y"]),
    ]
    constants = {"heads": [0, 0, 2, 3], "axis": [2], "wide": [1, 1, 4, 1, 1], "flat": [0, 8, 5, 3]}
    model = _model(nodes, ["batch", 5, 6], {name: np.array(values) for name, values in constants.items()})
    _runs_alike(model, NORMALIZE, True, ["Reshape", "Transpose", "Gather"])
