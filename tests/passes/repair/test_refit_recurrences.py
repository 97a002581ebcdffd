"""Recurrences: what they read of themselves is compensated, and their biases take what means lack."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfold.inspection import inspect_model
from onnxfold.passes.repair.repair_least_squares import RecurrenceRefit
from testing.compare import relative_difference
from testing.graph_builder import GraphBuilder
from testing.models import run
from testing.quick import quick_fold
from testing.rule_models.layers import with_initial_states
from testing.rule_models.table import RULE_MODELS

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, INPUTS, HIDDEN = 9, 6, 16


def _network(op: str) -> onnx.ModelProto:
    """A recurrence in which every other hidden unit differs little from the one before, and a layer for every step."""
    g = GraphBuilder(op, 5, (STEPS, INPUTS))
    rows = g.relu(g.node("MatMul", ["x", g.constant("inner", g.normal(INPUTS, 8))], [STEPS, 8]))
    g.nodes.append(helper.make_node("Transpose", [rows], ["sequence"], perm=[1, 0, 2]))

    def paired(width: int, std: float) -> np.ndarray:
        half = g.normal(GATES[op], HIDDEN // 2, width, std=std)
        both = np.repeat(half, 2, axis=1) + g.normal(GATES[op], HIDDEN, width, std=0.3 * std)
        return both.reshape(1, -1, width).astype(np.float32)

    weights = [
        g.constant("W", paired(8, 0.5)),
        g.constant("R", paired(HIDDEN, 0.3)),
        g.constant("B", paired(1, 0.5).reshape(1, -1).repeat(2, axis=1)),
    ]
    linear_before_reset = {"linear_before_reset": 1} if op == "GRU" else {}
    node = helper.make_node(op, ["sequence", *weights], ["states"], hidden_size=HIDDEN, **linear_before_reset)
    g.nodes.append(node)
    g.nodes.append(helper.make_node("Transpose", ["states"], ["first"], perm=[2, 0, 1, 3]))
    g.shapes["first"] = (STEPS, 1, HIDDEN)
    flat = g.node("Reshape", ["first", g.constant("flat", np.array([0, STEPS, HIDDEN]))], [STEPS, HIDDEN])
    g.output(g.node("MatMul", [flat, g.constant("outer", g.normal(HIDDEN, 5))], [STEPS, 5]))
    return g.build()


def _error(model: onnx.ModelProto, **options: object) -> float:
    random = np.random.default_rng(0)
    seen, held_out = (random.standard_normal((n, STEPS, INPUTS)).astype(np.float32) for n in (128, 16))
    result = quick_fold(model, method="fold-ls", calibration={"x": seen}, verify=False, **options)
    assert [g.folded_width for g in result.report.groups] == [8, HIDDEN // 2]
    feeds = {"x": held_out}
    (before,), (after,) = run(model, feeds), run(result.model, feeds)
    return float(np.sqrt(np.square(after - before).mean() / before.var()))


@pytest.mark.parametrize("op", GATES)
def test_refitted_states_keep_the_result(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _network(op)
    widths = {"channel_ratio": 0.0, "ratios": {inspect_model(model).groups[1].name: 0.5}}
    refitted = _error(model, **widths)
    monkeypatch.setattr(RecurrenceRefit, "refit", lambda *_: None)
    plain = _error(model, **widths)
    assert refitted < 0.97 * plain  # the reader, which has no bias, gives the means in both


@pytest.mark.parametrize("op", GATES)
def test_zero_states_hold_no_hidden_units_and_others_do(op: str) -> None:
    model = RULE_MODELS[op]()
    free = {g.name: g.size for g in inspect_model(model).groups}
    assert {g.name: g.size for g in inspect_model(with_initial_states(RULE_MODELS[op](), 0.0)).groups} == free
    held = inspect_model(with_initial_states(RULE_MODELS[op](), 0.5))
    assert sum(g.size for g in held.groups) == sum(free.values()) - 5


@pytest.mark.parametrize("op", GATES)
def test_merged_duplicates_are_not_refitted(op: str) -> None:
    """The outputs are those of the original up to rounding."""
    model = _network(op)
    for tensor in model.graph.initializer:
        if tensor.name in ("W", "R", "B"):
            values = onnx.numpy_helper.to_array(tensor).copy()
            rows = values.reshape(-1, HIDDEN, *values.shape[2:])
            rows[:, 1::2] = rows[:, ::2]
            tensor.CopyFrom(onnx.numpy_helper.from_array(rows.reshape(values.shape), tensor.name))
    feeds = {"x": np.random.default_rng(1).standard_normal((4, STEPS, INPUTS)).astype(np.float32)}
    name = inspect_model(model).groups[1].name
    result = quick_fold(model, method="fold-ls", channel_ratio=0.0, ratios={name: 0.5}, verify=False)
    assert relative_difference(run(model, feeds), run(result.model, feeds)) <= 1e-5
