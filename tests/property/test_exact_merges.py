"""What merges exact duplicates only is merged and left alone: no repair turns rounding into weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import onnxfold
from onnxfold.cluster.partition import mean_partition, select_partition
from onnxfold.folding.methods import REPAIRS
from testing.models import ALL_MODELS, chain_conv, mlp, random_input
from testing.quick import quick_fold
from testing.widening.widen import widen

Array = NDArray[Any]
ACTIVE = [name for name in REPAIRS if name != "none"]


def _weights(model: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.mark.parametrize(("number", "name"), enumerate(ALL_MODELS))
def test_every_repair_leaves_exact_merges_alone(number: int, name: str) -> None:
    """Doubled channels folded back: the same bits whatever the repair, statistics of odd inputs included.

    Models take every second repair, in turn.
    """
    model = ALL_MODELS[name](3)
    wide, _ = widen(model, 3, 2, per_row=True, order="random")
    options: dict[str, Any] = {"channel_ratio": 0.5, "cluster": "ward", "verify": False}
    plain = _weights(quick_fold(wide, repair="none", **options).model)
    for repair in ACTIVE[number % 2 :: 2]:
        found = _weights(quick_fold(wide, repair=repair, **options).model)
        assert list(found) == list(plain)
        for tensor, values in plain.items():
            np.testing.assert_array_equal(found[tensor], values, err_msg=f"{repair}: {tensor}")


@pytest.mark.parametrize("method", ["fold-ls", "fold-ar", "fold-r"])
@pytest.mark.parametrize("batch_norm", [True, False], ids=["batch norm", "no batch norm"])
def test_only_what_follows_a_lossy_merge_is_repaired(batch_norm: bool, method: str) -> None:
    """The last group loses channels that differ; everything in front of it is as if nothing had been repaired."""
    model = chain_conv(0, widths=(4, 4, 8)) if batch_norm else mlp(0, widths=(4, 4, 8))
    wide, _ = widen(model, 0, 2, per_row=True, order="random")
    groups = [g.name for g in onnxfold.inspect(wide)]
    options: dict[str, Any] = {"channel_ratio": 0.5, "ratios": {groups[-1]: 0.75}, "verify": False}
    if method == "fold-r":
        options["calibration"] = {k: np.concatenate([v] * 8) for k, v in random_input(model, 1).items()}
    lossy = quick_fold(wide, method=method, **options)
    assert [g.folded_width for g in lossy.report.groups] == [4, 4, 4]
    plain = _weights(quick_fold(wide, cluster="ward", repair="none", **options).model)
    found = _weights(lossy.model)
    layer = "conv" if batch_norm else "gemm"
    upstream = (
        [n for n in plain if n.split("_")[1] in ("0", "1")] if not batch_norm else _before(lossy.model, f"{layer}_2")
    )
    assert upstream
    for tensor in upstream:
        np.testing.assert_array_equal(found[tensor], plain[tensor], err_msg=tensor)
    assert any(not np.array_equal(found[t], plain[t]) for t in plain if t not in upstream)


def _before(model: onnx.ModelProto, last: str) -> list[str]:
    """Return the weights of the nodes before a layer, in file order."""
    weights = {t.name for t in model.graph.initializer}
    names: list[str] = []
    for node in model.graph.node:
        if f"{last}_w" in node.input:
            return names
        names += [n for n in node.input if n in weights]
    raise AssertionError(f"no node reads {last}_w")


def test_what_only_merges_duplicates() -> None:
    classes = np.array([0, 1, 0, 2])
    assert mean_partition([0, 1, 0, 2]).only_merges(classes)
    assert mean_partition([0, 1, 2, 3]).only_merges(classes)
    assert not mean_partition([0, 0, 0, 1]).only_merges(classes)
    assert not mean_partition([0, 1, 0, -1]).only_merges(classes)
    assert not select_partition([0, 1, 3], 4).only_merges(classes)
