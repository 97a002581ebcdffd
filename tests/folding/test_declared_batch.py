"""A network that declares a batch is probed on several; one of one sample is refined on more, where it takes them."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxfold
from onnxfold.graph.files.load import load
from onnxfold.inputs.model_inputs import ModelInputs
from testing import models
from testing.inputs import model_inputs

pytest.importorskip("torch")
from onnxfold.folding.after.training import join_single_samples

SIDE = 8
DATA = {"x": np.random.default_rng(0).standard_normal((48, 3, SIDE, SIDE)).astype(np.float32)}
REFINED: dict[str, Any] = {
    "channel_ratio": 0.4, "method": "prune-l1", "calibration": DATA, "cache": None, "verify": False, "refine": "all",
    "refine_steps": 30,
}  # fmt: skip


def _declare(batch: int, *, states: bool = False, insists: bool = False) -> onnx.ModelProto:
    """A residual network of a declared batch; its Reshape may state it, a constant may have a value per sample."""
    model = models.residual(0)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    numbers: dict[str, np.ndarray[Any, Any]] = {}
    if states:
        flatten = next(node for node in model.graph.node if node.op_type == "Flatten")
        flatten.op_type = "Reshape"
        del flatten.attribute[:]
        flatten.input.append("target")
        numbers["target"] = np.array([batch, -1], np.int64)
    if insists:
        output = model.graph.output[0].name
        last = next(node for node in model.graph.node if output in node.output)
        last.output[0] = "unshifted"
        numbers["shift"] = np.ones((batch, 1), np.float32)
        model.graph.node.append(helper.make_node("Concat", ["unshifted", "shift"], [output], axis=1))
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value += 1
    model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in numbers.items())
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize(("batch", "counts"), [(0, [8]), (1, [1] * 4), (3, [3, 3]), (16, [16])])
def test_few_samples_are_one_batch_or_as_many_of_the_declared_size(batch: int, counts: list[int]) -> None:
    model = _declare(batch) if batch else models.residual(0)
    few = model_inputs(load(model), "noise", samples=48).few_batches(8)
    assert [len(b["x"]) for b in few] == counts


@pytest.mark.parametrize("states", [False, True])
def test_the_refinement_is_that_of_a_free_batch(states: bool) -> None:
    free, declared = (onnxfold.fold(m, **REFINED) for m in (models.residual(0), _declare(1, states=states)))
    records = [result.report.refinement for result in (free, declared)]
    assert [record.kept for record in records if record is not None] == [True, True]
    losses = [(record.loss_before, record.loss_after) for record in records if record is not None]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    weights = [
        {t.name: numpy_helper.to_array(t) for t in result.model.graph.initializer} for result in (free, declared)
    ]
    for name, values in weights[0].items():
        np.testing.assert_allclose(weights[1][name], values, atol=0.02 * np.abs(values).max(), err_msg=name)


@pytest.mark.parametrize(
    ("batch", "how", "joined"),
    [(1, {}, True), (1, {"states": True}, True), (1, {"insists": True}, False), (4, {}, False)],
)
def test_samples_are_joined_where_any_batch_runs(batch: int, how: dict[str, bool], joined: bool) -> None:
    view = load(_declare(batch, **how))
    batches = [{"x": DATA["x"][i : i + batch]} for i in range(0, 48, batch)]
    inputs = ModelInputs(batches, "data", "", fixed_batch=True)
    found = join_single_samples(view, inputs)
    assert found.fixed_batch is not joined
    assert [len(b["x"]) for b in found.batches] == ([48] if joined else [batch] * (48 // batch))
    np.testing.assert_array_equal(np.concatenate([b["x"] for b in found.batches]), DATA["x"])
