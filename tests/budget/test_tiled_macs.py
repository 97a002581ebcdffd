"""Multiply-accumulates in tiles: hand-counted layers, and moves of single groups."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxfold.budget.costs.lengths import PLAIN, Length, Product, ProductTable, SumCost, Tiling
from onnxfold.budget.costs.running import MacsCost, TiledMacsCost
from onnxfold.budget.moves import single_moves
from testing.graph_builder import GraphBuilder
from testing.models import ALL_MODELS, depthwise_separable, mlp
from tests.budget.folded import graphs_of


def _three(width: int, size: int = 6) -> onnx.ModelProto:
    """3 -> width -> width -> 3 channels, kernels of 1 x 1."""
    g = GraphBuilder("three", 0, (3, size, size))
    y = g.conv(g.conv("x", width, kernel=1), width, kernel=1)
    g.output(g.conv(y, 3, kernel=1))
    return g.build()


def test_outputs_count_in_tiles_and_the_few_inputs_of_an_image_as_they_are() -> None:
    cost = TiledMacsCost(graphs_of(_three(16)))
    assert cost([16, 16]) == 36 * (16 * 3 + 16 * 16 + 8 * 16)
    assert cost([12, 16]) == cost([16, 16])  # 12 inputs are read as two tiles
    assert cost([8, 16]) == 36 * (8 * 3 + 16 * 8 + 8 * 16)


def test_inputs_off_multiples_of_4_cost_more() -> None:
    cost = TiledMacsCost(graphs_of(_three(16)))
    assert cost([15, 16]) == int(36 * (16 * 3 + 16 * 15 * 1.6 + 8 * 16))
    assert cost([15, 16]) > cost([16, 16])
    assert cost([7, 16]) == 36 * (8 * 3 + 16 * 7 + 8 * 16)  # too few to be put into tiles


def test_depthwise_convolutions_pay_most() -> None:
    graphs = graphs_of(depthwise_separable(0, width=32))
    groups = graphs[0][1]
    tiled, plain = TiledMacsCost(graphs), MacsCost(graphs)
    full = [g.size for g in groups]
    assert tiled([31 if w == 32 else w for w in full]) > tiled(full)
    assert plain([31 if w == 32 else w for w in full]) < plain(full)


def test_matrix_products_count_as_they_are() -> None:
    graphs = graphs_of(mlp(0, widths=(12, 10)))
    assert TiledMacsCost(graphs)([7, 9]) == MacsCost(graphs)([7, 9])


@pytest.mark.parametrize("name", ["residual", "grouped_conv", "depthwise_separable", "concat_net", "flatten_conv"])
def test_moves_cost_what_all_widths_cost(name: str) -> None:
    graphs = graphs_of(ALL_MODELS[name](0))
    groups = [group for _, found in graphs for group in found]
    cost = TiledMacsCost(graphs)
    sizes = [group.size for group in groups]
    moves = single_moves(cost, sizes)
    random, widths = np.random.default_rng(0), list(sizes)
    everyone = np.arange(len(groups))
    for _ in range(8):
        to = [int(random.integers(1, g.size // g.block_count + 1)) * g.block_count for g in groups]
        each = [cost([*widths[:i], w, *widths[i + 1 :]]) for i, w in enumerate(to)]
        assert moves.cost(moves.changes(everyone, np.array(to))).tolist() == each
        moved = int(random.integers(len(groups)))
        widths[moved] = to[moved]
        moves.take(moved, to[moved])
        assert moves.total == cost(widths)


def test_a_tiling_counts_every_length() -> None:
    """In tiles of 8 where a multiple of 4, at twice the cost elsewhere, and as they are below 8."""
    tiling = Tiling(8, least=8, aligned=4, tiled=5, untiled=10)
    table = ProductTable([Product.of([Length(0, ((0, 1),), tiling=tiling)])], 1)
    widths = np.array([[1, 7, 8, 9, 12, 16, 17]])
    assert table(widths).tolist() == [[5, 35, 40, 90, 80, 80, 170]]
    assert Product.of([Length(9, tiling=tiling), Length(3)]) == Product(270)
    assert SumCost(graphs_of(mlp(0)), [Product.of([Length(0, ((0, 1),))])])([9, 1]) == 9
    assert Length(4, tiling=PLAIN) == Length(4)
