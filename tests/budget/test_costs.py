"""Every cost model knows what the folded model will cost, without folding it."""

import numpy as np
import onnx
import pytest

from onnxfold.budget.costs.lengths import Length, Product, ProductTable, SumCost
from onnxfold.budget.costs.memory import FlashCost, RamCost, count_flash, count_ram
from onnxfold.budget.costs.running import MacsCost, count_macs
from onnxfold.budget.costs.weights import WeightCost, count_parameters
from testing.models import ALL_MODELS, mlp
from tests.budget.folded import NAMES, folds, graphs_of, model
from tests.folding.bodies import choice as branches

COSTS = {
    "params": (WeightCost, count_parameters),
    "macs": (MacsCost, count_macs),
    "ram": (RamCost, count_ram),
    "flash": (FlashCost, count_flash),
}


def _check(proto: onnx.ModelProto) -> None:
    graphs = graphs_of(proto)
    costs = {name: cost(graphs) for name, (cost, _) in COSTS.items()}
    found = folds(proto)
    assert any(widths < found[0][0] for widths, _ in found[1:])
    for widths, folded in found:
        for name, (_, count) in COSTS.items():
            assert costs[name](widths) == count(folded), (name, widths)


@pytest.mark.parametrize("name", NAMES)
def test_cost_is_what_the_folded_model_costs(name: str) -> None:
    _check(model(name))


@pytest.mark.parametrize("weights_outside", [False, True])
def test_bodies_of_control_flow_cost_as_well(weights_outside: bool) -> None:
    proto = branches(weights_outside=weights_outside)
    _check(proto)
    # Both branches, two layers each, x has 4 entries.
    graphs = graphs_of(proto)
    assert MacsCost(graphs)([8, 8]) == 2 * (4 * 8 + 8 * 3)
    assert MacsCost(graphs)([8, 2]) == 4 * 8 + 8 * 3 + 4 * 2 + 2 * 3


@pytest.mark.parametrize("name", COSTS)
def test_many_choices_at_once(name: str) -> None:
    graphs = graphs_of(ALL_MODELS["grouped_conv"](0))
    cost = COSTS[name][0](graphs)
    groups = [g for _, found in graphs for g in found]
    rng = np.random.default_rng(0)
    widths = np.stack(
        [[g.block_count * rng.integers(1, g.size // g.block_count + 1) for g in groups] for _ in range(9)]
    )
    many = cost.many(widths)
    assert many.shape == (9,)
    assert many.tolist() == [cost(row.tolist()) for row in widths]
    assert len(set(many.tolist())) > 3


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("model_name", ["residual", "concat_net", "grouped_conv", "autoencoder"])
def test_narrower_is_never_dearer(name: str, model_name: str) -> None:
    graphs = graphs_of(ALL_MODELS[model_name](0))
    cost = COSTS[name][0](graphs)
    groups = [g for _, found in graphs for g in found]
    full = np.array([g.size for g in groups])
    for i, group in enumerate(groups):
        widths = np.tile(full, (group.size // group.block_count, 1))
        widths[:, i] = np.arange(group.block_count, group.size + 1, group.block_count)
        assert np.all(np.diff(cost.many(widths)) >= 0)


def test_products() -> None:
    """2 (3 + 4a) (1 + a + b) / 2, and 5; widths in columns."""
    first, second = Length(3, ((0, 4),)), Length(1, ((0, 1), (1, 1)), 2)
    products = [Product.of([first, second, Length(4, (), 2)]), Product.of([Length(5)])]
    assert products[0] == Product(2, (Length(1, ((0, 1), (1, 1)), 2), first))
    table = ProductTable(products, 2)
    widths = np.array([[1, 2], [2, 5]])
    assert table(widths).tolist() == [[2 * 7 * 2, 2 * 11 * 4], [5, 5]]
    assert SumCost(graphs_of(mlp(0)), products * 2)([1, 2]) == 2 * (28 + 5)
    assert SumCost([], [])([]) == 0
