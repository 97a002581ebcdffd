"""Networks that the usual generated inputs do not suit: free lengths, lengths as inputs, masks, foreign operators."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfold.errors import UnsupportedModelError, VerificationError
from onnxfold.folding.inputs import choose_inputs
from onnxfold.folding.probes.trials import Change, run_trials
from onnxfold.graph.files.load import load
from onnxfold.inputs.model_inputs import ModelInputs
from testing.models import mlp
from testing.quick import quick_fold


def _model(body: str, inputs: str, **weights: tuple[int, ...]) -> ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[n, classes] y) {{ {body} }}'
    )
    random = np.random.default_rng(0)
    for name, shape in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(random.standard_normal(shape, np.float32), name))
    return model


def test_a_length_that_leaves_nothing_is_not_taken() -> None:
    """At the usual length, 64, the window of the convolution is longer than the signal."""
    body = """
        h = Conv <strides = [64]> (x, w)
        r = Relu (h)
        m = GlobalAveragePool (r)
        f = Flatten (m)
        y = Gemm <transB = 1> (f, v)
    """
    model = _model(body, "float[n, 1, samples] x", w=(16, 1, 512), v=(4, 16))
    report = quick_fold(model, 0.3).report
    assert any("run at x:1,1,1024" in note for note in report.notes)
    assert report.groups[0].repair == "least-squares"
    assert not any("run at" in note for note in quick_fold(mlp(0), 0.3).report.notes)


def test_lengths_that_fit_together_by_chance_prove_nothing() -> None:
    body = """
        axis = Constant <value_ints = [0]> ()
        three = Constant <value_ints = [3]> ()
        total = ReduceSum (count, axis)
        size = Concat <axis = 0> (total, three)
        rows = Expand (one, size)
        both = Concat <axis = 1> (x, rows)
        h = Relu (both)
        y = MatMul (h, v)
    """
    view = load(_model(body, "float[n, 2] x, int64[n] count", one=(1, 3), v=(5, 4)))
    batch = {"x": np.zeros((8, 2), np.float32), "count": np.array([1, 1] + [0] * 6)}
    with pytest.raises(VerificationError, match="Concat"):
        choose_inputs._require_run(view, ModelInputs([batch], "dead-leaves", ""))
    choose_inputs._require_run(view, ModelInputs([batch | {"count": np.ones(8, np.int64)}], "dead-leaves", ""))


def test_a_network_that_gives_nan_is_repaired_from_its_weights() -> None:
    """Its mask leaves nothing over on any generated input."""
    body = """
        axis = Constant <value_ints = [1]> ()
        length = ReduceL2 <axes = [1]> (x)
        below = Neg (length)
        nothing = Sqrt (below)
        a = Gemm (x, w)
        h = Relu (a)
        masked = Add (h, nothing)
        y = MatMul (masked, v)
    """
    result = quick_fold(_model(body, "float[n, 8] x", w=(8, 16), v=(16, 4)), 0.3)
    assert any("output 'y' is NaN" in note for note in result.report.notes)
    assert {g.repair for g in result.report.groups} == {"approximate"}


def test_a_trial_of_a_recurrence_that_reads_what_it_writes() -> None:
    """The result of a GRU is of the group that it reads, and is not there before it runs."""
    body = """
        steps = Transpose <perm = [1, 0, 2]> (x)
        states, last = GRU <hidden_size = 6> (steps, w, r)
        a0 = ReduceMean <axes = [0, 1], keepdims = 0> (states)
    """
    body += "".join(f"a{i + 1} = Relu (a{i})\n" for i in range(20)) + "y = Relu (a20)"  # the last nodes run alone
    view = load(_model(body, "float[n, 5, 6] x", w=(1, 18, 6), r=(1, 18, 6)))
    changes = [Change(0, tensor, lambda _: lambda values: values * 0.5) for tensor in ("steps", "states")]
    batch = {"x": np.random.default_rng(0).random((4, 5, 6), np.float32)}
    outcomes = run_trials(view, [batch], {"states": changes}, lambda done, count: None)
    assert outcomes[0].mean_loss > 0.0


@pytest.mark.parametrize("inside", [False, True])
def test_a_foreign_operator_is_named_first(inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(0)
    old = model.graph.output[0].name
    model.opset_import.append(helper.make_opsetid("acme", 1))
    model.graph.output[0].name = "z"
    lion = helper.make_node("Roar", [old], ["z" if not inside else "inner"], name="lion", domain="acme")
    if inside:
        bodies = [
            helper.make_graph([n], "b", [], [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)])
            for n in (lion, helper.make_node("Identity", [old], ["inner"]))
        ]
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        lion = helper.make_node("If", ["yes"], ["z"], then_branch=bodies[0], else_branch=bodies[1])
    model.graph.node.append(lion)
    quick_fold(model, 0.3, verify=False)
    monkeypatch.setattr("onnxfold.folding.open_model.require_no_nan", lambda view: pytest.fail("work was done"))
    with pytest.raises(UnsupportedModelError, match=r"'lion' \(Roar\) of the domain 'acme'.*--no-verify"):
        quick_fold(model, 0.3)


def test_a_file_that_onnxruntime_does_not_load_is_not_blamed_on_its_channels() -> None:
    """Its bias does not broadcast, so that no shape is known behind it."""
    body = """
        c = Conv (x, w)
        s = Add (c, b)
        r = Relu (s)
        m = GlobalAveragePool (r)
        f = Flatten (m)
        y = Gemm (f, v)
    """
    model = _model(body, "float[n, 3, 8, 8] x", w=(16, 3, 1, 1), b=(16,), v=(16, 4))
    with pytest.raises(VerificationError, match="onnxruntime does not load"):
        quick_fold(model, 0.3)
