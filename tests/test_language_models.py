"""Language models as torch exports them, with free lengths and caches: heads and feed-forward channels fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import onnx
import pytest
from numpy.typing import NDArray

from onnxfold.inspection import inspect_model
from testing import genai_models
from testing.compare import relative_difference
from testing.covered import covered
from testing.genai_models import Kind, genai_decoder, genai_feeds
from testing.models import run
from testing.quick import quick_fold
from testing.widening.declarations import DeclaredNumbers, normalised
from testing.widening.widen import Widening, in_order
from testing.zoo.language import Style
from testing.zoo.lengths import CASES as NETWORKS
from testing.zoo.lengths import WORDS, Exporter, language_case

Feeds = Mapping[str, NDArray[Any]]
STYLES: tuple[Style, ...] = ("eager", "sdpa")
#: Those of the dynamo exporter take torch several seconds each.
QUICK = {("bert", "eager", "legacy"), ("torch_attention", "eager", "legacy")}
MORE: list[tuple[str, Style, Exporter]] = [(name, "sdpa", "dynamo-23") for name in ("llama", "qwen3_cached", "whisper")]
MORE += [("t5", "bmm", "legacy"), ("t5", "bmm", "dynamo"), ("whisper", "bmm", "legacy")]
#: Every network in both styles and by both exporters; the four pairs of these are each of them a half of the networks.
PAIRS: list[tuple[str, Style, Exporter]] = [
    (name, "eager" if name == "torch_attention" else STYLES[(i + j) % 2], exporter)  # it has no style
    for i, name in enumerate(NETWORKS)
    for j, exporter in enumerate(get_args(Exporter)[:2])
]
CASES = [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.long]) for case in [*PAIRS, *MORE]]

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
    "torch_attention": ([3, 3], [96, 96]),
    "clip": ([3, 3, 4, 4, 4], [96, 96, 128, 128, 128]),
}


@pytest.mark.parametrize(("name", "style", "exporter"), CASES)
def test_heads_and_channels_fold(name: str, style: Style, exporter: Exporter, tmp_path: Path) -> None:
    case = language_case(name, style)
    path = case.export(tmp_path / "model.onnx", exporter)
    # onnxruntime does not repeat cosines for the sequences of a batch.
    lengths = ((1, 7, 5), (1, 4, 0)) if exporter == "dynamo-23" else ((2, 7, 5), (3, 4, 0), (1, 1, 9))
    feeds = [case.feeds(*sizes) for sizes in lengths]
    assert covered(path, WORDS) >= 0.95
    _folds(path, feeds, *GROUPS[name], parts=2 if name.endswith("_cached") else 1)


@pytest.mark.long
def test_what_onnxruntime_fuses_folds(tmp_path: Path) -> None:
    """Attention with its weights inside, norms of sums, activations with a bias."""
    case = language_case("clip", "eager")
    path = case.export(tmp_path / "model.onnx", "legacy")
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    fused = optimizer.optimize_model(str(path), model_type="clip", num_heads=4, hidden_size=32, opt_level=0)
    fused.save_model_to_file(str(path))
    assert {"Attention", "SkipLayerNormalization", "QuickGelu"} <= {n.op_type for n in fused.model.graph.node}
    assert covered(path, WORDS) >= 0.95
    feeds = [case.feeds(*lengths) for lengths in ((2, 7, 5), (3, 4, 0))]
    _folds(path, feeds, [3, 4, 3, 4, 4], [96, 128, 96, 128, 128], parts=1)


def test_the_published_recipe_for_language_models(tmp_path: Path) -> None:
    """Method fold-ar averages heads and channels, repairs nothing, and leaves the first blocks alone."""
    path = tmp_path / "model.onnx"
    onnx.save(genai_decoder("packed"), path)
    report = quick_fold(path, channel_ratio=0.5, method="fold-ar", verify=False).report
    assert (report.cluster, report.repair) == ("kmeans-heads", "none")
    assert [(g.width, g.folded_width) for g in report.groups] == [(6, 6), (80, 80), (6, 4), (80, 40)]
    assert {g.cluster for g in report.groups if g.folded_width < g.width} == {"kmeans-heads"}
    assert any("34% to 94% of its depth: 2 of 4 groups keep their width" in note for note in report.notes)
    named = quick_fold(path, channel_ratio=0.5, ratios={"*": 0.5}, method="fold-ar", verify=False).report
    assert all(g.folded_width < g.width for g in named.groups)
    other = quick_fold(path, channel_ratio=0.5, method="fold-ar", cluster="ward", repair="approximate", verify=False)
    assert (other.report.cluster, other.report.repair) == ("ward", "approximate")


@pytest.mark.parametrize("kind", get_args(Kind))
def test_decoders_of_genai_fold(kind: Kind, tmp_path: Path) -> None:
    model = genai_decoder(kind)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    feeds = [genai_feeds(model, *lengths) for lengths in ((1, 7, 5), (3, 4, 0), (2, 1, 9))]
    # The heads of a cache stay, and with them those of queries where every one has keys of its own.
    heads = [] if kind == "multi_head_cached" else [6, 6]
    assert covered(path, genai_models.WORDS) >= 0.95
    _folds(path, feeds, heads, [80, 80], parts=1 if kind == "multi_head" else 2)


def _folds(path: Path, feeds: Sequence[Feeds], heads: list[int], others: list[int], parts: int) -> None:
    """Check the groups of a file; widen it and fold it back; halve it."""
    found = inspect_model(path)
    assert all(r.reason for r in found.refusals)
    groups = [group for group in found.groups if not group.is_between_factors]
    assert [g.size for g in groups if g.apart] == heads
    assert [g.size for g in groups if not g.apart] == others
    assert {g.block_count for g in groups if g.apart} <= {parts}

    original = onnx.load(path)
    expected = [run(original, feed) for feed in feeds]
    widening = Widening(normalised(path), 0, None, DeclaredNumbers)
    wide = widening.apply()
    assert len(widening.groups) == len(groups)
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
