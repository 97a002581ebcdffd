"""The part of a language model's depth that a method folds."""

from dataclasses import replace

from onnxfold.channels.group import Allowed, FoldGroup, WidthRules
from onnxfold.folding.methods import METHODS, outside

RECIPE = METHODS["fold-ar"].form(is_language=True).depth


def _blocks(count: int, *, heads: bool) -> list[FoldGroup]:
    """Return heads and channels of blocks, in the order of a graph."""
    found = []
    for i in range(count):
        found += [FoldGroup(f"heads {i}", 4, (), {}, allowed=Allowed.SELECT)] if heads else []
        found.append(FoldGroup(f"channels {i}", 8, (), {}))
    return found


def test_blocks_11_to_29_of_32_are_folded_as_published() -> None:
    groups = _blocks(32, heads=True)
    kept = {groups[i].name for i in outside(groups, *RECIPE)}
    assert kept == {f"{what} {i}" for what in ("heads", "channels") for i in (*range(11), 30, 31)}


def test_one_block_is_folded() -> None:
    assert outside(_blocks(1, heads=False), *RECIPE) == []
    assert outside(_blocks(2, heads=True), *RECIPE) == [0, 1]


def test_groups_with_one_width_for_all_layers_are_folded() -> None:
    groups = [replace(group, rules=WidthRules(tie=0)) if group.apart else group for group in _blocks(32, heads=True)]
    assert all(not groups[i].apart for i in outside(groups, *RECIPE))


def test_other_methods_fold_every_block() -> None:
    groups = _blocks(5, heads=True)
    assert outside(groups, 0.0, 1.0) == []
    assert METHODS["fold-ar"].form(is_language=False).depth == (0.0, 1.0)
    assert outside(groups, *METHODS["fold-ls"].form(is_language=True).depth) == []
