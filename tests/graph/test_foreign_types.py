"""Shapes through operators that onnx does not know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.graph.files.load import load
from onnxfold.graph.shapes import foreign_types
from onnxfold.graph.shapes.foreign_types import result_types
from testing.models import run
from testing.quick import quick_fold

FLOAT = TensorProto.FLOAT
MICROSOFT = "com.microsoft"
VERSIONS = {"": 17, MICROSOFT: 1}


def _kind(*dims: int | str | None, elem_type: int = FLOAT) -> foreign_types.TensorType:
    shape = tuple(d if isinstance(d, int) else None for d in dims)
    return elem_type, shape, tuple(d if isinstance(d, str) else "" for d in dims)


def _results(
    op: str,
    inputs: Sequence[foreign_types.TensorType | None],
    outputs: int = 1,
    domain: str = MICROSOFT,
    **attrs: object,
) -> list[foreign_types.TensorType | None]:
    names = [f"x{i}" if kind else "" for i, kind in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attrs)
    opsets = [helper.make_opsetid(*version) for version in (VERSIONS if domain else {"": 9}).items()]
    return result_types(node, inputs, {}, onnx.ModelProto(ir_version=8, opset_import=opsets))


def test_packed_queries() -> None:
    lengths, total = _kind("batch", elem_type=TensorProto.INT32), _kind(elem_type=TensorProto.INT32)
    past = _kind("batch", 2, "past", 16)
    inputs = [_kind("batch", "tokens", 128), None, None, past, past, lengths, total]
    found = _results("GroupQueryAttention", inputs, 3, num_heads=4, kv_num_heads=2)
    assert found[0] == _kind("batch", "tokens", 64)
    assert found[1] is not None
    assert found[1][1] == (None, 2, None, 16)


def test_lengths_that_must_fit_together() -> None:
    """A cache can only be added to where what is added to scores is as long as past and present together."""
    new, past = _kind("batch", "sequence", 64), _kind("batch", 4, "past_sequence", 16)
    bias = _kind("batch", 1, "sequence", "total_sequence")
    found = _results("MultiHeadAttention", [new, new, new, None, None, bias, past, past], 3, num_heads=4)
    present = _kind("batch", 4, "total_sequence", 16)
    assert found == [new, present, present]


def test_batches_of_what_is_large_by_itself() -> None:
    image = _kind("n", 16, 200, 400)
    assert _results("Crop", [image], domain="", border=[1, 2, 3, 4]) == [_kind("n", 16, 194, 396)]
    larger = _kind("n", 16, 722, 722)
    assert _results("Crop", [larger], domain="", border=[1, 1, 1, 1]) == [_kind("n", 16, 720, 720)]


def test_operators_that_old_exporters_wrote_into_the_default_domain() -> None:
    image = _kind("n", 3, "h", 32)
    assert _results("ImageScaler", [image], domain="", scale=1.0, bias=[0.0, 0.0, 0.0]) == [image]
    assert _results("Crop", [_kind("n", 3, 40, 32)], domain="", border=[1, 1, 1, 1]) == [_kind("n", 3, 38, 30)]


@pytest.mark.parametrize("told", [[], [None, None, None]])
def test_runs_tell_what_onnxruntime_leaves_open(monkeypatch: pytest.MonkeyPatch, told: list[None]) -> None:
    """As if onnxruntime told nothing: a transposed product has a number, and symbols in another order."""
    monkeypatch.setattr(foreign_types, "_read_output", lambda output: (FLOAT, (None,) * 3, ("",) * 3) if told else None)
    foreign_types._session_types.cache_clear()
    try:
        found = _results("FusedMatMul", [_kind("n", "s", 8), _kind("n", "t", 8)], transB=1)
    finally:
        foreign_types._session_types.cache_clear()
    assert found == [_kind("n", "s", "t")]


def test_dimensions_that_values_decide_stay_unknown() -> None:
    values, inverse, counts = _results("Unique", [_kind("n")], 3)
    assert values is not None
    assert inverse == _kind("n", elem_type=TensorProto.INT64)
    assert counts is not None
    assert (values[1], counts[1]) == ((None,), (None,))


def test_operators_that_nobody_knows() -> None:
    assert _results("NoSuchOperator", [_kind("n")]) == [None]


def _conv_net(first: Sequence[onnx.NodeProto], opset: int, domains: Sequence[str] = ()) -> onnx.ModelProto:
    """Two convolutions behind nodes that lead from "x" to "scaled"."""
    random = np.random.default_rng(0)
    shapes = {"w1": (6, 3, 3, 3), "b1": (6,), "w2": (4, 6, 3, 3), "b2": (4,)}
    weights = [numpy_helper.from_array(random.normal(0, 0.4, s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        *first,
        helper.make_node("Conv", ["scaled", "w1", "b1"], ["h"], "conv1"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Conv", ["r", "w2", "b2"], ["y"], "conv2"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 3, 12, 12])],
        [helper.make_tensor_value_info("y", FLOAT, ["n", 4, 8, 8])],
        weights,
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=6)


def test_a_network_behind_an_operator_without_a_rule_folds() -> None:
    """As WinML's exports of SqueezeNet begin."""
    scaler = helper.make_node("ImageScaler", ["x"], ["scaled"], "scaler", scale=0.5, bias=[0.1, 0.2, 0.3])
    model = _conv_net([scaler], 9)
    assert [(g.name, g.size) for g in onnxfold.inspect(model)] == [("conv1", 6)]
    folded = quick_fold(model, channel_ratio=0.5, method="fold-ar").model
    assert run(folded, {"x": np.ones((2, 3, 12, 12), np.float32)})[0].shape == (2, 4, 8, 8)


def test_layers_that_are_alike() -> None:
    """Each reads what the one before it gives, and no shape is known before that of the first."""
    nodes, last = [], "x"
    for i in range(3):
        nodes.append(helper.make_node("FusedMatMul", [last, f"w{i}"], [f"h{i}"], domain=MICROSOFT, transB=1, alpha=0.5))
        nodes.append(helper.make_node("Relu", [f"h{i}"], [f"r{i}"]))
        last = f"r{i}"
    weights = [numpy_helper.from_array(np.ones((w, 8), np.float32), f"w{i}") for i, w in enumerate((8, 8, 6))]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", FLOAT, ["n", "s", 8])],
        [helper.make_tensor_value_info(last, FLOAT, None)],
        weights,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    view = load(helper.make_model(graph, opset_imports=imports, ir_version=8))
    assert [view.shape(f"r{i}") for i in range(3)] == [(None, None, 8), (None, None, 8), (None, None, 6)]
    assert view.symbols("r2") == ("n", "s", "")


def test_what_a_model_declares_of_unknown_operators_stays() -> None:
    unknown = helper.make_node("Scale", ["x"], ["scaled"], domain="com.example")
    model = _conv_net([unknown], 17, ["com.example"])
    model.graph.value_info.append(helper.make_tensor_value_info("scaled", FLOAT, ["n", 3, 12, 12]))
    assert load(model).shape("h") == (None, 6, 10, 10)


def test_symbols_that_inference_makes_up_are_no_news() -> None:
    """How many rows Compress leaves has another name in every inference."""
    nodes = [
        helper.make_node("Compress", ["x", "chosen"], ["rows"], axis=0),
        helper.make_node("Attention", ["rows", "w", "b"], ["y"], domain=MICROSOFT, num_heads=2),
    ]
    graph = helper.make_graph(
        nodes,
        "symbols",
        [
            helper.make_tensor_value_info("x", FLOAT, ["n", 5, 8]),
            helper.make_tensor_value_info("chosen", TensorProto.BOOL, ["n"]),
        ],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in (("w", (8, 12)), ("b", (12,)))],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    assert load(helper.make_model(graph, opset_imports=imports, ir_version=8)).shape("y") == (None, 5, 4)
