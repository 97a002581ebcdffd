"""Language models as torch exports them, with free lengths and caches: heads and feed-forward channels fold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

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
from testing.zoo.lengths import Exporter, language_case

Feeds = Mapping[str, NDArray[Any]]
NAMES = ("bert", "gpt2", "llama", "llama_cached")
STYLES: tuple[Style, ...] = ("eager", "sdpa")
#: Those of the dynamo exporter take torch several seconds each.
QUICK = {("bert", "eager", "legacy"), ("llama_cached", "sdpa", "legacy")}
CASES = [
    pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.long])
    for case in product(NAMES, STYLES, ("legacy", "dynamo"))
]

#: Per block the sizes of the groups: heads, or groups of heads that share keys and values, and inner channels.
GROUPS = {"bert": [4, 128], "gpt2": [4, 128], "llama": [2, 64], "llama_cached": [6, 64]}


def _feeds(model: onnx.ModelProto, batch: int, length: int, past: int) -> Feeds:
    """Values for lengths that were not exported with; the last token of a sequence is padding."""
    random = np.random.default_rng(7)
    past = past if any(info.name.startswith("past") for info in model.graph.input) else 0
    feeds: dict[str, NDArray[Any]] = {}
    for info in model.graph.input:
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if len(dims) > 2:
            feeds[info.name] = random.normal(size=(batch, dims[1], past, dims[3])).astype(np.float32)
        elif info.name == "attention_mask":
            feeds[info.name] = np.ones((batch, length + past), np.int64)
            feeds[info.name][0, -1] = 0
        else:
            feeds[info.name] = random.integers(0, 2, (batch, length))
    return feeds


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
    names = [n for n in linear_weights(view) if 50 not in view.weights[n].shape and n not in held]
    covered = [view.weight_size(n) * max(sides[n, Role.PRODUCER], sides[n, Role.CONSUMER]) for n in names]
    return sum(covered) / sum(map(view.weight_size, names))


@pytest.mark.parametrize(("name", "style", "exporter"), CASES)
def test_heads_and_channels_fold(name: str, style: Style, exporter: Exporter, tmp_path: Path) -> None:
    path = language_case(name, style).export(tmp_path / "model.onnx", exporter)
    assert _covered(path) >= 0.95
    found = inspect_model(path).groups
    assert [g.size for g in found] == GROUPS[name] * 2
    assert [g.apart for g in found] == [True, False] * 2
    assert {g.block_count for g in found if g.apart} == {2 if name == "llama_cached" else 1}

    original = onnx.load(path)
    feeds = [_feeds(original, *lengths) for lengths in ((2, 7, 5), (3, 4, 0), (1, 1, 9))]
    expected = [run(original, feed) for feed in feeds]
    narrow = normalised(path)
    widening = Widening(narrow, 0, None, DeclaredNumbers)
    wide = widening.apply()
    assert len(widening.groups) == 4
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
