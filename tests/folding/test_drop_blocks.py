"""Residual blocks are found by structure and dropped whole; what holds caches goes only where that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxfold
from onnxfold.config import NOTHING
from onnxfold.errors import BudgetError, ConfigError, NothingToFoldError
from onnxfold.folding.blocks.drop_blocks import drop_request, droppable_blocks
from onnxfold.folding.methods import find_method
from onnxfold.folding.open_model import OpenedModel, Opening, open_model
from onnxfold.language.residual_branches import residual_blocks, residual_branches
from onnxfold.progress import silent
from testing import models
from testing.genai_models import Kind, genai_decoder
from testing.language_models import WORDS, attention_decoder, decoder, encoder
from testing.models import run

LAYERS = 4
FAST: dict[str, Any] = {"samples": 4, "cache": None, "verify": False}


def _opened(model: onnx.ModelProto) -> OpenedModel:
    return open_model(model, NOTHING, silent, Opening(needs_groups=False))


def _names(model: onnx.ModelProto) -> set[str]:
    return {info.name for info in (*model.graph.input, *model.graph.output)}


def _parameters(model: onnx.ModelProto) -> int:
    return sum(int(np.prod(t.dims)) for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)


def _weak(model: onnx.ModelProto, *layers: int) -> onnx.ModelProto:
    """Let blocks do nothing, so that their influence is 0 and the model is the same without them."""
    for weight in model.graph.initializer:
        if any(weight.name in (f"o_{i}_w", f"down_{i}_w", f"ff_{i}_down_w") for i in layers):
            weight.CopyFrom(numpy_helper.from_array(0.0 * numpy_helper.to_array(weight), weight.name))
    return model


def _feeds(model: onnx.ModelProto, past: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    ids = np.random.default_rng(3).integers(0, WORDS, (1 if past else 2, 9))
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for info in model.graph.input:
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if len(dims) == 4:
            feeds[info.name] = np.full((len(ids), dims[1], past, dims[3]), 0.1, np.float32)
    total = np.ones((len(ids), 9 + past), np.int64)
    return {"input_ids": ids, "attention_mask": total, **feeds}


KINDS: tuple[Kind, ...] = ("packed", "biased", "normed", "multi_head_cached")


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        *((lambda kind=kind: genai_decoder(kind), [2, 2]) for kind in KINDS),
        (lambda: decoder(layers=2), [2, 2]),
        (lambda: attention_decoder(layers=3), [2, 2, 2]),
        (encoder, [1]),
        (lambda: models.residual(0), None),
        (lambda: models.chain_conv(0), []),
    ],
)
def test_blocks_are_found_by_structure(make: Callable[[], onnx.ModelProto], sizes: list[int] | None) -> None:
    blocks = residual_blocks(residual_branches(_opened(make()).view))
    if sizes is None:
        assert blocks
    else:
        assert [len(block) for block in blocks] == sizes


@pytest.mark.parametrize("kind", KINDS)
def test_idle_blocks_of_a_decoder_go_without_loss(kind: Kind) -> None:
    model = _weak(genai_decoder(kind, layers=LAYERS), 1, 2)
    result = onnxfold.fold(model, drop_blocks=2, allow_cache_change=True, **FAST)
    folded = result.model
    past = 0 if kind == "multi_head_cached" else 5
    before, after = (run(m, _feeds(m, past) | _positions(m, past))[0] for m in (model, folded))
    np.testing.assert_allclose(after, before, atol=1e-5)
    dropped = result.report.dropped
    assert [len(block.nodes) for block in dropped] == [2, 2]
    assert all(block.influence == pytest.approx(0.0, abs=1e-6) and block.caches == 4 for block in dropped)
    # Norms between blocks that go together are of no use, either.
    assert sum(block.weights for block in dropped) == pytest.approx(_parameters(model) - _parameters(folded), rel=0.01)
    assert result.report.sparsity == pytest.approx(1 - _parameters(folded) / _parameters(model))
    # The caches of layer 3 are those of layer 1 now.
    assert {name for name in _names(folded) if name.startswith(("past", "present"))} == {
        f"{front}.{i}.{part}" for front in ("past_key_values", "present") for i in (0, 1) for part in ("key", "value")
    }


def _positions(model: onnx.ModelProto, past: int) -> dict[str, np.ndarray[Any, Any]]:
    if not any(info.name == "position_ids" for info in model.graph.input):
        return {}
    return {"position_ids": np.tile(np.arange(past, past + 9), (2, 1))}


def test_a_model_with_fewer_caches_is_compared_with_its_original() -> None:
    model = _weak(decoder(layers=2), 0)
    result = onnxfold.fold(model, drop_blocks=1, allow_cache_change=True, **FAST | {"verify": True})
    assert result.report.fidelity is not None
    assert result.report.fidelity.outputs[0].top1_agreement == 1.0
    text = {"input_ids": _feeds(model)["input_ids"]}
    assert onnxfold.compare(model, result.model, text).outputs[0].relative_error < 1e-4


def test_caches_keep_the_attention_where_they_must_stay() -> None:
    model = _weak(genai_decoder("packed", layers=LAYERS), 1)
    result = onnxfold.fold(model, drop_blocks=1, **FAST)
    assert [block.nodes for block in result.report.dropped] == [("node_gate_1",)]
    assert _names(result.model) == _names(model)
    notes = [note for note in result.report.notes if "residual branches stay" in note]
    assert notes
    assert "it goes only with --allow-cache-change" in notes[0]
    np.testing.assert_allclose(run(result.model, _feeds(model))[0], run(model, _feeds(model))[0], atol=1e-5)


def test_shortgpt_drops_as_many_as_the_sparsity_takes() -> None:
    model = _weak(decoder(layers=LAYERS), 2)
    result = onnxfold.fold(model, 0.4, method="shortgpt", allow_cache_change=True, **FAST)
    assert len(result.report.dropped) == 2
    assert "node_q_2_all" in {block.name for block in result.report.dropped}
    assert all(group.width == group.folded_width for group in result.report.groups)
    assert not any(n.op_type == "Identity" for n in result.model.graph.node)
    run(result.model, _feeds(result.model))


def test_a_fold_follows_what_is_dropped() -> None:
    model = _weak(decoder(layers=LAYERS), 2)
    result = onnxfold.fold(model, 0.4, drop_blocks=1, allow_cache_change=True, **FAST)
    assert len(result.report.dropped) == 1
    assert result.report.sparsity == pytest.approx(0.4, abs=0.02)
    assert len(result.report.groups) == 2 * (LAYERS - 1)
    assert result.report.config["drop_blocks"] == 1


def test_auto_drops_idle_branches_and_no_others() -> None:
    model = _weak(decoder(layers=LAYERS), 1)
    result = onnxfold.fold(model, 0.25, drop_blocks="auto", allow_cache_change=True, **FAST)
    assert {block.name for block in result.report.dropped} == {"node_q_1_all", "node_ff_1_up"}
    assert all(block.effect == pytest.approx(0.0, abs=1e-6) for block in result.report.dropped)
    assert result.report.sparsity == pytest.approx(0.25, abs=0.02)
    plain = onnxfold.fold(decoder(layers=LAYERS), 0.1, drop_blocks="auto", allow_cache_change=True, **FAST)
    assert not plain.report.dropped


def test_blocks_with_shortcuts_of_a_network_of_pictures_go() -> None:
    model = models.residual(0)
    found, _ = droppable_blocks(_opened(model).view, may_change_caches=False, whole=True)
    result = onnxfold.fold(model, drop_blocks=1, **FAST)
    assert _parameters(result.model) == _parameters(model) - result.report.dropped[0].weights
    assert len(result.report.dropped) == 1
    assert {one.branches[0].name for one in found} >= {result.report.dropped[0].name}
    assert _names(result.model) == _names(model)


def test_a_branch_that_something_else_reads_stays() -> None:
    model = encoder()
    model.graph.output.append(helper.make_tensor_value_info("ff_relu", 1, None))
    with pytest.raises(NothingToFoldError, match="something else reads what 'node_ff_up' in it computes"):
        onnxfold.fold(model, drop_blocks=1, **FAST)


def test_requests_that_cannot_be_met() -> None:
    with pytest.raises(NothingToFoldError, match="no residual block can be dropped: no node adds"):
        onnxfold.fold(models.chain_conv(0), drop_blocks=1, **FAST)
    with pytest.raises(BudgetError, match="drop_blocks=9: only 2 blocks can be dropped"):
        onnxfold.fold(decoder(layers=2), drop_blocks=9, **FAST)
    with pytest.raises(BudgetError, match="all blocks that can be dropped hold"):
        onnxfold.fold(decoder(layers=2), 0.95, method="shortgpt", **FAST)
    with pytest.raises(ConfigError, match="give a sparsity or drop_blocks as its goal"):
        onnxfold.fold(decoder(layers=2), channel_ratio=0.5, method="shortgpt", **FAST)
    with pytest.raises(ConfigError, match="leave out cluster and repair"):
        find_method("shortgpt", cluster="kmeans")
    with pytest.raises(ConfigError, match="drop_blocks and goals of latency exclude each other"):
        onnxfold.fold(decoder(layers=2), drop_blocks=1, max_latency="0.5x", **FAST)


def test_most_requests_drop_nothing() -> None:
    config = onnxfold.FoldConfig(sparsity=0.5)
    assert drop_request(_opened(models.residual(0)), config, find_method("fold-ls")) is None
