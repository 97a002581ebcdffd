"""Positions that are weighted by their length: a few long ones do not hide the others, and are not lost either."""

import numpy as np
import pytest

from onnxfold.channels import find_groups
from onnxfold.cluster.partition import select_partition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.passes.merge.fold_channels import FoldChannels
from onnxfold.passes.repair.repair_least_squares import RepairLeastSquares
from onnxfold.statistics.observe import FitRules, Observing
from onnxfold.statistics.samples import length_factors, weighted_means
from testing.graph_builder import GraphBuilder
from testing.models import run
from testing.observing import observed

LONG = 3000.0


def _texts() -> Array:
    """Return positions of 12 channels, the last of which is linear in the others, but for one long position in 64."""
    random = np.random.default_rng(0)
    x = random.standard_normal((640, 12)).astype(np.float32)
    x[:, 11] = x[:, 0] + x[:, 1]
    x[::64] = 0.0
    x[::64, 2] = LONG
    x[::64, 11] = -LONG
    return x


@pytest.fixture(params=[False, True], ids=["matmul", "gemm"])
def network(request: pytest.FixtureRequest) -> GraphView:
    """A layer that reads twelve channels as they are."""
    g = GraphBuilder("reads", 0, (12,))
    h = g.node("MatMul", ["x", g.constant("w1", np.eye(12, dtype=np.float32))], (12,))
    if request.param:
        h = g.add(h, g.constant("b1", g.normal(12)))
        g.output(g.gemm(h, 8))
    else:
        g.output(g.node("MatMul", [h, g.constant("w2", g.normal(12, 8))], (8,)))
    return load(g.build())


def test_a_position_counts_by_its_length() -> None:
    x = np.array([[3.0, 4.0], [300.0, 400.0]], np.float32)
    factors = length_factors(x)
    energy = np.square(x * factors).sum(axis=1)
    assert energy[1] / energy[0] == pytest.approx(100.0)
    (mean,) = weighted_means([((x,), factors)])
    np.testing.assert_allclose(mean, (x / np.linalg.norm(x, axis=1)[:, None]).sum(0) / (0.2 + 0.002))


def test_zeros_and_infinities_make_no_factor_infinite() -> None:
    loud = np.array([[1e30, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 2.0, 1.0]])
    for x in (np.zeros((4, 3)), np.full((4, 3), np.inf), np.zeros((0, 3)), np.diag([1.0, 1.0, 0.0]), loud):
        assert np.isfinite(length_factors(x.astype(np.float32))).all()


def test_a_refit_sees_the_others_beside_long_positions(network: GraphView) -> None:
    """The last channel is dropped: what it gave nearly all positions is regained, whatever the long ones say."""
    x = _texts()
    (group,) = find_groups(network).groups
    plan = FoldPlan((group,), (select_partition(np.arange(11), 12),))
    lost = {}
    for continues_text in (False, True):
        seen = observed(network, (group,), [{"x": x}], Observing(FitRules(by_length=continues_text)))
        folded = network.copy()
        FoldChannels(plan, ())(folded)
        RepairLeastSquares(network, plan, seen)(folded)
        was, is_now = (run(to_model(view), {"x": x})[0].astype(np.float64) for view in (network, folded))
        error = np.square(was - is_now).sum(axis=1) / np.square(was).sum(axis=1)
        lost[continues_text] = np.median(error), error[::64].max()
    assert lost[True][0] < 0.5 * lost[False][0]
    assert lost[True][1] < 0.1


def test_covariances_are_weighted(network: GraphView) -> None:
    x = _texts()
    groups = find_groups(network).groups
    plain, weighted = (
        observed(network, groups, [{"x": x}], Observing(FitRules(by_length=flag))).moments[0][0].covariance
        for flag in (False, True)
    )
    assert plain[2, 2] > 10_000 * plain[0, 0]
    assert weighted[0, 0] < weighted[2, 2] < 1000 * weighted[0, 0]
