"""Widths that a runtime computes fast: which groups have which steps, and which widths lie on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from onnxfold.budget.width_space import WidthSpace, preferred_steps
from onnxfold.channels.group import NO_SEAM, FoldGroup
from testing.models import ALL_MODELS, chain_conv, depthwise_separable, flatten_conv, grouped_conv, mlp
from testing.rule_models.table import RULE_MODELS
from tests.budget.folded import graphs_of


def _steps(proto: object) -> list[tuple[int, ...]]:
    view, groups = graphs_of(proto)[0]  # type: ignore[arg-type]
    return preferred_steps(view, groups)


def _space(size: int, lossless: int | None = None, block_count: int = 1) -> WidthSpace:
    group = cast(FoldGroup, SimpleNamespace(size=size, block_count=block_count, seam=NO_SEAM))
    ladder = tuple(s for s in (8, 4, 1) if s <= size)
    return WidthSpace([group], {}, preferred=[ladder], lossless=[size if lossless is None else lossless])


def test_convolutions_of_images_prefer_multiples_of_8() -> None:
    assert _steps(chain_conv(0, widths=(16, 32))) == [(8, 4, 1)] * 2


def test_a_narrow_group_takes_4_and_then_1() -> None:
    assert _steps(chain_conv(0, widths=(6, 3))) == [(4, 1), (1,)]


def test_depthwise_convolutions_prefer_them_too() -> None:
    assert {steps[0] for steps in _steps(depthwise_separable(0, width=16))} == {8}


def test_blocks_of_a_grouped_convolution_are_kept() -> None:
    view, groups = graphs_of(grouped_conv(0, groups=3, width=24))[0]
    found = preferred_steps(view, groups)
    assert any(group.block_count == 3 for group in groups)
    for group, steps in zip(groups, found, strict=True):
        assert steps[0] == (24 if group.block_count == 3 else 8)
        assert steps[-1] == group.block_count
        assert all(step % group.block_count == 0 and step <= group.size for step in steps)


@pytest.mark.parametrize("name", ["mlp", "matmul_bias_net", "gemm_variants", "conv1d", "conv3d"])
def test_matrix_products_and_other_convolutions_take_any_width(name: str) -> None:
    assert set(_steps(ALL_MODELS[name](0))) == {(1,)}


def test_recurrent_layers_take_any_width() -> None:
    view, groups = graphs_of(RULE_MODELS["LSTM-bidirectional"]())[0]
    steps = dict(zip((group.name for group in groups), preferred_steps(view, groups), strict=True))
    assert [found for name, found in steps.items() if name == "recurrent"] == [(1,)]


def test_a_group_between_a_convolution_and_a_matrix_product_is_one_of_a_convolution() -> None:
    view, groups = graphs_of(flatten_conv(0))[0]
    steps = dict(zip((group.name for group in groups), preferred_steps(view, groups), strict=True))
    read_by_gemm = [g for g in groups if any(m.positions.shape[1] > 1 for m in g.members)]
    assert read_by_gemm
    assert all(steps[g.name][0] in (4, 8) for g in read_by_gemm)


def test_steps_lead_through_the_width_without_duplicates() -> None:
    """13 of 26 channels are distinct: 8 is not the only width below 16."""
    space = _space(26, lossless=13)
    path = [26]
    while (width := space.narrower(0, path[-1], 0, 1 / 32)) != path[-1]:
        path.append(width)
    assert path == [26, 24, 16, 13, 8]
    back = [8]
    while (width := space.wider(0, back[-1], 0)) != back[-1]:
        back.append(width)
    assert back == path[::-1]


def test_a_width_below_the_step_is_reached_by_duplicates_alone() -> None:
    space = _space(16, lossless=5)
    assert space.narrower(0, 8, 0, 1 / 32) == 5
    assert space.narrower(0, 5, 0, 1 / 32) == 5
    assert space.narrower(0, 5, 1, 1 / 32) == 4


def test_relaxed_names_the_step_of_every_group_off_its_preferred_widths() -> None:
    group = cast(FoldGroup, SimpleNamespace(size=30, block_count=1, seam=NO_SEAM))
    space = WidthSpace([group] * 6, {5: 7}, preferred=[(8, 4, 1)] * 6, lossless=[13] * 6)
    assert space.relaxed_steps([16, 30, 13, 12, 7, 7]) == [4, 1]


def test_mlp_is_untouched_by_steps() -> None:
    graphs = graphs_of(mlp(0, widths=(12, 10)))
    groups = graphs[0][1]
    space = WidthSpace.of(groups, {}, (), 1, preferred_steps(*graphs[0]))
    assert space.relaxed_steps([5, 3]) == []
    assert space.narrowest == [1, 1]
