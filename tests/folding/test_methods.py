"""Every partition with every repair, and every method by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold.cluster.partitioners import PARTITIONERS
from onnxfold.errors import ConfigError
from onnxfold.folding.methods import METHODS, REPAIRS, find_method
from testing.models import chain_conv, mlp, random_input, run
from testing.quick import quick_fold

#: What averages nothing has nothing that these repairs could restore.
UNSUPPORTED = set(product(("top-l1", "top-l2", "rotation", "streams", "wanda", "flap"), ("approximate", "independent")))
SUPPORTED = [cell for cell in product(PARTITIONERS, REPAIRS) if cell not in UNSUPPORTED]
MODELS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "batch norm": partial(chain_conv, widths=(6, 8)),
    "no batch norm": partial(mlp, widths=(6, 8)),
}
PASSES = {
    "approximate": "RepairApproximate",
    "independent": "RepairApproximate",
    "recalibrate": "Recalibrate",
    "least-squares": "RepairLeastSquares",
    "bias": "RepairBias",
}


@cache
def _model(kind: str) -> onnx.ModelProto:
    return MODELS[kind](0)


def _weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def _check(kind: str, result: onnxfold.FoldResult, repair: str, *, verified: bool = True) -> None:
    model = _model(kind)
    assert [(g.width, g.folded_width) for g in result.report.groups] == [(6, 3), (8, 4)]
    layer = "conv" if kind == "batch norm" else "gemm"
    weights = _weights(result.model)
    shapes = [weights[f"{layer}_{i}_w"].shape[:2] for i in (0, 1)]
    assert shapes == [(3, 3 if layer == "conv" else 7), (4, 3)]
    assert result.report.sparsity > 0.3
    repairs = [p.name for p in result.report.passes if p.name in PASSES.values()]
    assert repairs == ([PASSES[repair]] if repair in PASSES else [])
    if verified:
        assert result.report.fidelity is not None  # verified in onnxruntime
        assert result.report.fidelity.outputs[0].output == "y"
    onnx.checker.check_model(result.model, full_check=True)
    feeds = random_input(model, 1)
    before, after = run(model, feeds)[0], run(result.model, feeds)[0]
    assert after.shape == before.shape
    assert np.isfinite(after).all()
    assert np.abs(after - before).max() > 1e-6  # half of the channels of a random network


def test_unsupported_cells_are_cells() -> None:
    """The list above names partitions and repairs that exist."""
    assert set(product(PARTITIONERS, REPAIRS)) >= UNSUPPORTED
    assert len(SUPPORTED) == len(PARTITIONERS) * len(REPAIRS) - len(UNSUPPORTED)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("cluster", "repair"), SUPPORTED)
def test_every_partition_with_every_repair(cluster: str, repair: str, kind: str) -> None:
    verified = repair == "none"  # the others run in onnxruntime below
    result = quick_fold(_model(kind), channel_ratio=0.5, cluster=cluster, repair=repair, verify=verified)
    assert (result.report.cluster, result.report.repair) == (cluster, repair)
    _check(kind, result, repair, verified=verified)


@pytest.mark.parametrize(("cluster", "repair"), sorted(UNSUPPORTED))
def test_repairs_that_have_nothing_to_restore(cluster: str, repair: str) -> None:
    with pytest.raises(ConfigError) as error:
        quick_fold(_model("batch norm"), channel_ratio=0.5, cluster=cluster, repair=repair)
    assert str(error.value) == (
        f"repair '{repair}' restores what averaging loses, and cluster '{cluster}' averages nothing: "
        "take none, recalibrate, least-squares or bias"
    )


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    "name", [n for n, m in METHODS.items() if m.inputs == "auto" and not m.drops_blocks and not m.only_streams]
)
def test_every_method(name: str, kind: str) -> None:
    method = METHODS[name]
    result = quick_fold(_model(kind), channel_ratio=0.5, method=name)
    assert (result.report.method, result.report.cluster, result.report.repair) == (name, method.cluster, method.repair)
    assert (result.report.inputs is not None) == method.needs_inputs
    _check(kind, result, method.repair)


@pytest.mark.parametrize("kind", MODELS)
def test_fold_r_takes_its_statistics_from_data(kind: str) -> None:
    data = random_input(_model(kind), 5, batch=16)
    result = onnxfold.fold(_model(kind), channel_ratio=0.5, method="fold-r", calibration=data)
    assert result.report.inputs is not None
    assert (result.report.inputs.kind, result.report.inputs.samples) == ("data", 16)
    _check(kind, result, "recalibrate")


def test_fold_r_without_data() -> None:
    with pytest.raises(ConfigError, match=r"this method takes statistics from your data: give --calibration FILE\.npz"):
        onnxfold.fold(_model("batch norm"), channel_ratio=0.5, method="fold-r")


@pytest.mark.parametrize("kind", MODELS)
def test_fold_dir_inverts(kind: str) -> None:
    pytest.importorskip("torch")
    result = onnxfold.fold(_model(kind), channel_ratio=0.5, method="fold-dir", samples=8)
    assert result.report.inputs is not None
    assert (result.report.inputs.kind, result.report.inputs.samples) == ("deep-inversion", 8)
    _check(kind, result, "recalibrate")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "fold-xyz"}, "method 'fold-xyz' is unknown: choose one of fold-ls, fold-ar"),
        ({"name": "fold-ls", "cluster": "xyz"}, "cluster 'xyz' is unknown: choose one of elimination, kmeans"),
        ({"name": "fold-ar", "cluster": "xyz"}, "cluster 'xyz' is unknown: choose one of elimination, kmeans"),
        ({"name": "fold-ls", "repair": "xyz"}, "repair 'xyz' is unknown: choose one of none, approximate"),
    ],
)
def test_unknown_names(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        find_method(**options)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(("cluster", "repair"), SUPPORTED)
def test_what_stands_in_where_a_graph_cannot_be_run(cluster: str, repair: str) -> None:
    """It needs no inputs, is a supported cell, and changes nothing that needs none."""
    method = find_method("fold-ls", cluster=cluster, repair=repair)
    without = method.possible(moments=False, inputs=False)
    assert not without.needs_inputs
    assert (without.cluster, without.repair) in SUPPORTED
    assert method.needs_inputs or without == method


def test_widths_that_are_given_need_no_run() -> None:
    """Ratios of all groups settle the widths: nothing is generated for error curves that nobody reads."""
    result = quick_fold(_model("batch norm"), ratios={"*": 0.5}, method="prune-l1")
    assert [(g.width, g.folded_width) for g in result.report.groups] == [(6, 3), (8, 4)]
    assert result.report.inputs is None
    repaired = quick_fold(_model("batch norm"), ratios={"*": 0.5})
    assert [g.folded_width for g in repaired.report.groups] == [3, 4]
    assert repaired.report.inputs is not None
