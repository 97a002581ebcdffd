"""What runners are given."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfold.edge_bench.job import prepare_job, relative_error
from onnxfold.errors import ConfigError
from testing import models
from testing.graph_builder import GraphBuilder
from tests.edge_bench.jobs import small_job


def test_one_sample_at_a_time_and_its_outputs(tmp_path: Path) -> None:
    job = small_job(tmp_path, samples=4)
    assert job.name == "small"
    assert [feeds["x"].shape for feeds in job.inputs] == [(1, 1, 12, 12)] * 4
    model = onnx.load(job.onnx)
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [1, 1, 12, 12]
    original = onnx.load(tmp_path / "small.onnx")
    for feeds, outputs in zip(job.inputs, job.reference, strict=True):
        np.testing.assert_array_equal(outputs[0], models.run(original, feeds)[0])


def test_given_inputs_are_taken(tmp_path: Path) -> None:
    feeds = [{"x": np.full((1, 1, 12, 12), v, np.float32)} for v in (0.0, 1.0)]
    job = small_job(tmp_path, inputs=feeds)
    assert len(job.reference) == 2
    assert not np.array_equal(job.reference[0][0], job.reference[1][0])


def test_free_sizes_must_be_given(tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (3, 8, 8))
    g.output(g.relu(g.conv("x", 4)))
    model = g.build()
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.Clear()
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    onnx.save(model, tmp_path / "free.onnx")
    with pytest.raises(ConfigError, match=r"input 'x' has no fixed shape: give --input-shapes x:1,3,"):
        prepare_job(tmp_path / "free.onnx", tmp_path)
    job = prepare_job(tmp_path / "free.onnx", tmp_path, input_shapes={"x": (1, 3, 8, 8)}, samples=1)
    assert job.inputs[0]["x"].shape == (1, 3, 8, 8)


def test_relative_error() -> None:
    reference = [[np.array([1.0, -4.0])], [np.array([2.0, 0.0])]]
    close = [[np.array([1.0, -4.0])], [np.array([[2.0, 0.2]])]]
    assert relative_error(reference, reference) == 0.0
    assert relative_error(reference, close) == pytest.approx(0.2 / 4)
    assert relative_error(reference, [[np.array([1.0, np.nan])], close[1]]) == np.inf
    assert relative_error(reference, [[np.array([1.0])], close[1]]) == np.inf
    assert relative_error([[np.zeros(2)]], [[np.array([0.0, 0.5])]]) == 0.5
