"""Moves of single groups cost what a look at all widths says, and far fewer products are looked at."""

import numpy as np
import pytest
from onnx import NodeProto

from onnxfold.budget.allocate_globally import allocate_globally
from onnxfold.budget.costs.lengths import Cost, ProductTable
from onnxfold.budget.moves import single_moves
from onnxfold.budget.objectives import Budgets
from onnxfold.budget.width_space import WidthSpace
from onnxfold.graph.nodes import captured_names
from testing.long_graphs import conv
from testing.models import ALL_MODELS
from tests.budget.folded import graphs_of


class _Whole:
    """A cost that does not say what it is the sum of, so that every move is a choice of all widths."""

    def __init__(self, cost: Cost) -> None:
        self.many = cost.many


@pytest.mark.parametrize("name", ["mlp", "residual", "grouped_conv", "depthwise_separable", "concat_net", "dense_net"])
@pytest.mark.parametrize("kind", ["params", "macs", "flash"])
def test_moves_cost_what_all_widths_cost(name: str, kind: str) -> None:
    graphs = graphs_of(ALL_MODELS[name](0))
    groups = [group for _, found in graphs for group in found]
    cost = Budgets.of(graphs, {kind: 1}).budgets[0].cost
    random = np.random.default_rng(0)
    sizes = np.array([group.size for group in groups])
    sparse, dense = single_moves(cost, sizes.tolist()), single_moves(_Whole(cost), sizes.tolist())
    everyone = np.arange(len(groups))
    for _ in range(6):
        to = np.array([random.integers(1, size + 1) for size in sizes])
        to = np.maximum(to // [g.block_count for g in groups], 1) * [g.block_count for g in groups]
        expected = dense.cost(dense.changes(everyone, to))
        np.testing.assert_array_equal(sparse.cost(sparse.changes(everyone, to)), expected)
        moved = int(random.integers(len(groups)))
        before = sparse.changes(everyone, to)
        affected = sparse.take(moved, int(to[moved]))
        dense.take(moved, int(to[moved]))
        assert sparse.total == dense.total
        others = np.setdiff1d(everyone, [*affected, moved])
        np.testing.assert_array_equal(sparse.changes(others, to[others]), before[others])


def test_a_step_looks_at_few_products(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = graphs_of(conv(200))
    groups = graphs[0][1]
    full = Budgets.of(graphs, {"params": 1}).budgets[0].cost([g.size for g in groups])
    budgets = Budgets.of(graphs, {"params": full // 2})
    looked = 0
    evaluate = ProductTable.__call__

    def counted(self: ProductTable, widths: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        nonlocal looked
        looked += widths.shape[1]
        return evaluate(self, widths)

    monkeypatch.setattr(ProductTable, "__call__", counted)
    curves = [np.array([np.inf, *np.linspace(1.0, 0.0, g.size)]) for g in groups]
    assert not budgets.exceeded_budgets(allocate_globally(WidthSpace(groups, {}), curves, budgets))
    assert looked < 10  # all groups in every one of some hundred steps, if each were a choice of all widths


def test_free_names_take_one_look_at_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    view = graphs_of(conv(50))[0][0]
    looked_at: list[NodeProto] = []

    def counted(node: NodeProto) -> list[str]:
        looked_at.append(node)
        return captured_names(node)

    monkeypatch.setattr("onnxfold.graph.view.captured_names", counted)
    view.replace_nodes(view.nodes)  # forgets the names in use
    names = [view.add_weight("scale", np.ones(1, np.float32)) for _ in range(20)]
    assert len(set(names)) == 20
    assert len(looked_at) == len(view.nodes)
