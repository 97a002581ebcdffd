"""The maps of a fold between channels: the folded weights can be rebuilt from the original's by them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfold.api import FoldResult
from onnxfold.cluster.partitioners import PARTITIONERS
from onnxfold.errors import ConfigError
from testing.models import chain_conv, mlp
from testing.quick import quick_fold
from tests.command_line import onnxfold

Arrays = dict[str, Any]
MLP, CONV = mlp(0, widths=(24, 20)), chain_conv(0, widths=(8, 12), bn=False)


def _weights(model: onnx.ModelProto) -> Arrays:
    return {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}


def _along(matrix: Any, values: Any, axis: int) -> Any:
    return np.moveaxis(np.tensordot(matrix, values, (1, axis)), 0, axis)


def _rebuilt(original: onnx.ModelProto, producers: dict[str, Any], consumers: dict[str, Any], maps: Arrays) -> Arrays:
    """W' = diag(g) (P W B + D) for every weight of layers that follow each other; B is Q where nothing was refitted."""
    found = {}
    for name, values in _weights(original).items():
        layer, kind = name.rsplit("_", 1)
        if layer in producers:
            values = _along(producers[layer], values, 0)
        if kind == "w" and layer in consumers:
            values = _along(maps.get(f"B/{name}", consumers[layer]).T, values, 1)
        values = values + maps.get(f"D/{name}", 0.0)
        gain = maps.get(f"g/{name}", np.ones(len(values)))
        found[name] = values * gain.reshape(-1, *[1] * (values.ndim - 1))
    return found


def _read(result: FoldResult, folder: Path) -> Arrays:
    with np.load(result.save_merge_map(folder / "maps.npz")) as arrays:
        return dict(arrays)


LAYERS = {"mlp": (MLP, ["gemm_0", "gemm_1", "gemm_2"]), "conv": (CONV, ["conv_0", "conv_1", "gemm_0"])}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("method", ["fold-ls", "fold-naive", "prune-l2"])
def test_folded_weights_are_rebuilt_from_the_file(kind: str, method: str, tmp_path: Path) -> None:
    model, layers = LAYERS[kind]
    result = quick_fold(model, 0.5, method=method, merge_map=True, allocation="uniform")
    maps = _read(result, tmp_path)
    producers = {layer: maps[f"P/{layer}"] for layer in layers[:-1]}
    consumers = {layer: maps[f"Q/{before}"] for before, layer in pairwise(layers)}
    expected = _rebuilt(model, producers, consumers, maps)
    for name, got in _weights(result.model).items():
        if name.endswith("_w"):
            np.testing.assert_allclose(got, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert (method == "fold-ls") == any(name.startswith("B/") for name in maps)
    assert (kind == "conv" and method == "fold-ls") == any(name.startswith("D/") for name in maps)


def test_folded_weights_and_biases_are_rebuilt_from_the_report_alone() -> None:
    """A fold without a repair needs no more than the cluster of every channel."""
    result = quick_fold(MLP, 0.5, method="fold-naive", allocation="uniform")
    told = json.loads(result.report.to_json())["merge_map"]
    clusters = {entry["group"]: np.array(entry["clusters"]) for entry in told}
    columns = {name: (c[:, None] == np.arange(c.max() + 1)).astype(float) for name, c in clusters.items()}
    rows = {name: (q / q.sum(axis=0)).T for name, q in columns.items()}
    expected = _rebuilt(MLP, rows, {"gemm_1": columns["gemm_0"], "gemm_2": columns["gemm_1"]}, {})
    for name, got in _weights(result.model).items():
        np.testing.assert_allclose(got, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("cluster", PARTITIONERS)
def test_the_report_tells_the_matrices_of_every_clustering(cluster: str, tmp_path: Path) -> None:
    result = quick_fold(MLP, 0.4, cluster=cluster, repair="none", merge_map=True, verify=False)
    maps = _read(result, tmp_path)
    assert result.report.merge_map
    for found in result.report.merge_map:
        np.testing.assert_allclose(found.P, maps[f"P/{found.group}"])
        np.testing.assert_array_equal(found.Q, maps[f"Q/{found.group}"])


def test_the_report_names_no_group_that_keeps_its_channels() -> None:
    report = quick_fold(MLP, 0.3, keep=["gemm_0"]).report
    assert [found.group for found in report.merge_map] == ["gemm_1"]


def test_matrices_change_no_bytes_and_are_kept_on_request_only(tmp_path: Path) -> None:
    plain, kept = (quick_fold(CONV, 0.4, merge_map=m) for m in (False, True))
    assert plain.model.SerializeToString() == kept.model.SerializeToString()
    with pytest.raises(ConfigError, match="fold with merge_map=True"):
        plain.save_merge_map(tmp_path / "maps.npz")
    with pytest.raises(ConfigError, match=r"\.npz"):
        kept.save_merge_map(tmp_path / "maps.json")


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    onnx.save(MLP, tmp_path / "in.onnx")
    options = ["--sparsity", "0.5", "--samples", "16", "--inputs", "noise", "--no-verify"]
    options += ["--merge-map", tmp_path / "maps.npz"]
    done = onnxfold("fold", tmp_path / "in.onnx", tmp_path / "out.onnx", *options)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "maps.npz") as arrays:
        assert {"P/gemm_0", "Q/gemm_0"} <= set(arrays)
