"""Any partition with any repair, with and without BatchNormalization: a comparison repairs all sides."""

import numpy as np
import pytest

from onnxfold.cluster.partitioners import PARTITIONERS
from onnxfold.errors import ConfigError
from onnxfold.passes.methods import METHODS, REPAIRS
from tests.models import ALL_MODELS, random_input, run
from tests.quick import quick_fold

#: These repairs restore what averaging loses; a selection averages nothing.
REFUSED = {(cluster, repair) for cluster in ("top-l1", "top-l2") for repair in ("approximate", "independent")}
CELLS = [(c, r) for c in PARTITIONERS for r in REPAIRS if (c, r) not in REFUSED]


@pytest.mark.parametrize("base", ["residual", "residual_plain"])
@pytest.mark.parametrize(("cluster", "repair"), CELLS)
def test_every_partition_goes_with_every_repair(cluster: str, repair: str, base: str) -> None:
    model = ALL_MODELS[base](0)
    result = quick_fold(model, channel_ratio=0.5, cluster=cluster, repair=repair)
    assert (result.report.cluster, result.report.repair) == (cluster, repair)
    assert all(g.folded_width == g.width // 2 for g in result.report.groups if g.width % 2 == 0)
    feeds = random_input(model, 0)
    folded, original = run(result.model, feeds), run(model, feeds)
    assert all(np.isfinite(y).all() for y in folded)
    assert [y.shape for y in folded] == [y.shape for y in original]
    assert any(not np.array_equal(a, b) for a, b in zip(folded, original, strict=True))


@pytest.mark.parametrize(("cluster", "repair"), sorted(REFUSED))
def test_cells_that_make_no_sense_are_refused_in_words(cluster: str, repair: str) -> None:
    with pytest.raises(
        ConfigError, match=f"'{repair}' restores .* and cluster '{cluster}' averages nothing"
    ):
        quick_fold(ALL_MODELS["mlp"](0), cluster=cluster, repair=repair)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_folds(name: str) -> None:
    model = ALL_MODELS["chain_conv"](0)
    data = random_input(model, 0)
    result = quick_fold(model, channel_ratio=0.5, method=name, calibration=data if name == "fold-r" else None)
    method = METHODS[name]
    assert (result.report.cluster, result.report.repair) == (method.cluster, method.repair)
    assert (result.report.inputs is not None) == method.needs_inputs


def test_fold_r_wants_data() -> None:
    with pytest.raises(ConfigError, match="--calibration"):
        quick_fold(ALL_MODELS["chain_conv"](0), channel_ratio=0.5, method="fold-r", inputs="auto")


def test_partitions_by_name_differ() -> None:
    """The table does not lead to one and the same partition."""
    model = ALL_MODELS["mlp_bn"](0)
    found = {
        cluster: quick_fold(model, channel_ratio=0.5, cluster=cluster, repair="none").model.SerializeToString()
        for cluster in ("kmeans", "top-l1", "ifm", "single", "elimination")
    }
    assert len(set(found.values())) == len(found)
