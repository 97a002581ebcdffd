"""The report's map of channels: folded weights can be rebuilt from the original's by it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfold.cluster.partitioners import PARTITIONERS
from testing.models import mlp
from testing.quick import quick_fold

Arrays = dict[str, Any]
MLP = mlp(0, widths=(24, 20))


def _weights(model: onnx.ModelProto) -> Arrays:
    return {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}


def _along(matrix: Any, values: Any, axis: int) -> Any:
    return np.moveaxis(np.tensordot(matrix, values, (1, axis)), 0, axis)


def _rebuilt(original: onnx.ModelProto, producers: dict[str, Any], consumers: dict[str, Any]) -> Arrays:
    """W' = P W Q for every weight of layers that follow each other."""
    rebuilt = {}
    for name, values in _weights(original).items():
        layer, kind = name.rsplit("_", 1)
        if layer in producers:
            values = _along(producers[layer], values, 0)
        if kind == "w" and layer in consumers:
            values = _along(consumers[layer].T, values, 1)
        rebuilt[name] = values
    return rebuilt


def test_folded_weights_and_biases_are_rebuilt_from_the_report_alone() -> None:
    """A fold without a repair needs no more than the cluster of every channel."""
    result = quick_fold(MLP, 0.5, method="fold-naive", allocation="uniform")
    told = json.loads(result.report.to_json())["merge_map"]
    clusters = {entry["group"]: np.array(entry["clusters"]) for entry in told}
    columns = {name: (c[:, None] == np.arange(c.max() + 1)).astype(float) for name, c in clusters.items()}
    rows = {name: (q / q.sum(axis=0)).T for name, q in columns.items()}
    expected = _rebuilt(MLP, rows, {"gemm_1": columns["gemm_0"], "gemm_2": columns["gemm_1"]})
    for name, got in _weights(result.model).items():
        np.testing.assert_allclose(got, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("cluster", PARTITIONERS)
def test_the_report_tells_the_matrices_of_every_clustering(cluster: str) -> None:
    result = quick_fold(MLP, 0.4, cluster=cluster, repair="none", verify=False)
    assert result.report.merge_map
    for entry in result.report.merge_map:
        group = next(group for group in result.report.groups if group.name == entry.group)
        assert entry.P.shape == entry.Q.T.shape == (group.folded_width, group.width)
        np.testing.assert_allclose(entry.P @ entry.Q, np.eye(group.folded_width), atol=1e-12)


def test_the_report_names_no_group_that_keeps_its_channels() -> None:
    report = quick_fold(MLP, 0.3, keep=["gemm_0"]).report
    assert [found.group for found in report.merge_map] == ["gemm_1"]
