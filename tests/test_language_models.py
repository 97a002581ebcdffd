"""Language models as torch exports them, with free lengths and caches: heads and feed-forward channels fold."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from pathlib import Path

import onnx
import pytest

from onnxfold.channels.declarations import Role
from onnxfold.channels.layers import linear_weights
from onnxfold.graph.load import load
from onnxfold.inspection import inspect_model
from onnxfold.passes.normalize.pipelines import NORMALIZE
from testing.compare import relative_difference
from testing.models import run
from testing.quick import quick_fold
from testing.widening.declarations import DeclaredNumbers, normalised
from testing.widening.widen import Widening, in_order
from testing.zoo.language import Style
from testing.zoo.lengths import CASES as NETWORKS
from testing.zoo.lengths import WORDS, Exporter, language_case

STYLES: tuple[Style, ...] = ("eager", "sdpa")
#: Those of the dynamo exporter take torch several seconds each.
QUICK = {("bert", "eager", "legacy"), ("llama_cached", "sdpa", "legacy")}
CASES = [
    pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.long])
    for case in product(NETWORKS, STYLES, ("legacy", "dynamo"))
]

#: Sizes of heads, or of groups of heads that share keys and values, and of other groups.
GROUPS: dict[str, tuple[list[int], list[int]]] = {
    "bert": ([4, 4], [128, 128]),
    "gpt2": ([4, 4], [128, 128]),
    "llama": ([2, 2], [64, 64]),
    "llama_cached": ([6, 6], [64, 64]),
    "qwen2": ([2, 2], [64, 64]),
    "qwen3": ([2, 2], [64, 64]),
    "qwen3_cached": ([6, 6], [64, 64]),
    "t5": ([6] * 4, [64] * 4),
    "whisper": ([4] * 6, [32, *[128] * 4]),
    "vit": ([4] * 3, [128] * 3),
    "swin": ([3, 3, 6, 6, 6, 6], [96, 96, 192, 192, 192, 192]),
    "clip": ([3, 3, 4, 4, 4], [96, 96, 128, 128, 128]),
}


def _covered(path: Path) -> float:
    """Return the share of the weights in groups; the vocabulary and what a cache holds aside."""
    found = inspect_model(path)
    view = load(path)
    NORMALIZE(view)
    held = {r.axis.split("'")[1] for r in found.refusals if "'past." in r.reason}
    sides: dict[tuple[str, Role], float] = defaultdict(float)
    for member in (m for group in found.groups for m in group.members):
        width = view.weights[member.axis.tensor].shape[member.axis.axis]
        sides[member.axis.tensor, member.role] += member.positions.size / width
    names = [n for n in linear_weights(view) if WORDS not in view.weights[n].shape and n not in held]
    covered = [view.weight_size(n) * max(sides[n, Role.PRODUCER], sides[n, Role.CONSUMER]) for n in names]
    return sum(covered) / sum(map(view.weight_size, names))


@pytest.mark.parametrize(("name", "style", "exporter"), CASES)
def test_heads_and_channels_fold(name: str, style: Style, exporter: Exporter, tmp_path: Path) -> None:
    case = language_case(name, style)
    path = case.export(tmp_path / "model.onnx", exporter)
    assert _covered(path) >= 0.95
    found = inspect_model(path).groups
    heads, others = GROUPS[name]
    assert [g.size for g in found if g.apart] == heads
    assert [g.size for g in found if not g.apart] == others
    assert {g.block_count for g in found if g.apart} == {2 if name.endswith("_cached") else 1}

    original = onnx.load(path)
    feeds = [case.feeds(*lengths) for lengths in ((2, 7, 5), (3, 4, 0), (1, 1, 9))]
    expected = [run(original, feed) for feed in feeds]
    narrow = normalised(path)
    widening = Widening(narrow, 0, None, DeclaredNumbers)
    wide = widening.apply()
    assert len(widening.groups) == len(found)
    ratios = in_order(widening.groups, widening.ratios)
    assert ratios is not None
    for feed, outputs in zip(feeds, expected, strict=True):
        assert relative_difference(outputs, run(wide, feed)) <= 1e-4
    folded = quick_fold(wide, channel_ratio=0.0, ratios=ratios, method="fold-ar", verify=False).model
    for feed, outputs in zip(feeds, expected, strict=True):
        assert relative_difference(outputs, run(folded, feed)) <= 1e-4

    half = quick_fold(path, channel_ratio=0.5, method="fold-ar", verify=False).model
    assert half.graph.input == original.graph.input
    assert [o.name for o in half.graph.output] == [o.name for o in original.graph.output]
    for feed, outputs in zip(feeds, expected, strict=True):
        assert [a.shape for a in run(half, feed)] == [a.shape for a in outputs]
