"""Queries of attention with a cache become products of two narrower weights, where this loses least."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.budget.costs.running import MacsCost, count_macs
from onnxfold.budget.costs.weights import WeightCost, count_parameters
from onnxfold.folding.open_model import GraphForm, Opening, open_model, open_scopes
from onnxfold.folding.probes import sensitivity
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import PRIOR, WRITTEN
from onnxfold.inputs.tokens.answers import TokenAnswers, TokenFacts
from onnxfold.language import lookups
from onnxfold.language.lookups import QUERIES_ELSEWHERE
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.progress import silent
from testing.few_bits import in_few_bits
from testing.genai_models import HEADS, SIZE, Kind, genai_decoder, genai_feeds
from testing.language_models import WIDTH, WORDS
from testing.models import run
from tests.attention_forms import packed_projections

RANK, OWN, LAYERS = 12, HEADS * SIZE, 2
KINDS: tuple[Kind, ...] = ("packed", "biased", "normed", "multi_head_cached")
ONLY_QUERIES: dict[str, Any] = {"ratios": {"*": 0.0, "*_coordinates": 1.0 - RANK / WIDTH}, "round_to": 1}
FAST: dict[str, Any] = {"samples": 8, "cache": None, "verify": False}


def _low_rank(kind: Kind) -> onnx.ModelProto:
    """A decoder whose queries are of low rank, whatever they are computed of."""
    model, random = genai_decoder(kind, layers=LAYERS), np.random.default_rng(5)
    for tensor in model.graph.initializer:
        if tensor.name.startswith(("q_", "qkv_")) and tensor.name.endswith("_w"):
            values = np.array(numpy_helper.to_array(tensor))
            values[:, :OWN] = random.standard_normal((WIDTH, RANK)) @ random.standard_normal((RANK, OWN)) / WIDTH
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_queries_of_low_rank_lose_nothing(kind: Kind) -> None:
    model = _low_rank(kind)
    result = onnxfold.fold(model, method="fold-ls", **ONLY_QUERIES, **FAST)
    groups = [group for group in result.report.groups if group.name.endswith("_coordinates")]
    assert [(group.width, group.folded_width) for group in groups] == [(WIDTH, RANK)] * LAYERS
    saved = count_parameters(load(model)) - count_parameters(load(result.model))
    assert saved == LAYERS * (WIDTH * OWN - RANK * (WIDTH + OWN))
    feeds = genai_feeds(model, batch=1, length=5, past=3)
    before, after = run(model, feeds), run(result.model, feeds)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-3 * np.abs(one).max())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_the_attempt_where_queries_stay(kind: Kind) -> None:
    model = genai_decoder(kind, layers=LAYERS)
    view = load(model)
    NORMALIZE(view)
    before = to_model(view).SerializeToString(deterministic=True)
    (scope,) = open_scopes(view, GraphForm(queries=True))
    assert scope.trial is not None
    scope.with_seams(frozenset())
    after = to_model(view).SerializeToString(deterministic=True)
    assert after == before


@pytest.mark.parametrize("kind", KINDS)
def test_costs_are_those_of_the_folded_model(kind: Kind) -> None:
    feeds = genai_feeds(_low_rank(kind), batch=1, length=5, past=3)
    shapes = {name: values.shape for name, values in feeds.items()}
    (scope,) = open_scopes(load(_low_rank(kind), shapes), GraphForm(queries=True))
    groups = scope.analysis.groups
    assert sum(group.is_between_factors for group in groups) == LAYERS
    folded = onnxfold.fold(_low_rank(kind), method="fold-ls", **ONLY_QUERIES, **FAST).model
    for rank, model in ((WIDTH, _low_rank(kind)), (RANK, folded)):
        widths = [rank if group.is_between_factors else group.size for group in groups]
        assert WeightCost([(scope.analysed, groups)])(widths) == count_parameters(load(model))
        assert MacsCost([(scope.analysed, groups)])(widths) == count_macs(load(model, shapes))


def test_keys_and_values_that_no_cache_holds_leave_queries_as_they_are() -> None:
    view = load(genai_decoder("multi_head", layers=1))
    NORMALIZE(view)
    assert not GraphForm(queries=True).seams()(view).modified


def test_bases_that_would_take_too_much_memory_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "_MOST_NUMBERS", LAYERS * WIDTH**2 - 1)
    view = load(genai_decoder("packed", layers=LAYERS))
    NORMALIZE(view)
    assert not GraphForm(queries=True).seams()(view).modified


def test_a_budget_cuts_queries_whose_rank_is_low() -> None:
    """What loses nothing goes first, and a file that was folded is folded again."""
    model = _low_rank("packed")
    options: dict[str, Any] = {"objective": "weights", "round_to": 1, **FAST}
    once = onnxfold.fold(model, 0.1, **options)
    cut = [g for g in once.report.groups if g.name.endswith("_coordinates") and g.folded_width < g.width]
    assert cut, [(g.name, g.folded_width) for g in once.report.groups]
    twice = onnxfold.fold(once.model, 0.1, **options)
    assert count_parameters(load(twice.model)) < count_parameters(load(once.model))


def test_queries_of_few_bits_stay() -> None:
    """A factor would have no blocks to be stored in: the file would grow."""
    model = in_few_bits(_low_rank("packed"))
    opened = open_model(model, {}, silent, Opening(GraphForm(queries=True)))
    assert opened.stored
    assert not any(group.is_between_factors for group in opened.scopes[0].analysis.groups)
    assert not any(group.name.endswith("_coordinates") for group in onnxfold.inspect(model))


@pytest.mark.parametrize(("kind", "factor"), [(WRITTEN, QUERIES_ELSEWHERE), (PRIOR, 1.0)])
def test_queries_count_less_in_other_texts(kind: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tokens that are drawn, nothing is known of other texts."""
    monkeypatch.setattr(sensitivity, "sensitivities", lambda view, groups, *told, **more: np.ones(len(groups)))
    (scope,) = open_scopes(load(_low_rank("packed")), GraphForm(queries=True))
    groups = scope.analysis.groups
    feeds = genai_feeds(_low_rank("packed"), batch=1, length=5, past=0)
    probes: dict[int, Any] = dict.fromkeys(range(len(groups)))
    inputs = ModelInputs([feeds], kind, "", tokens=TokenFacts(TokenAnswers(WORDS)))
    found = sensitivity.measured_sensitivities(scope.analysed, groups, inputs, probes, silent)
    assert found.tolist() == [factor if group.is_between_factors else 1.0 for group in groups]


@pytest.mark.parametrize("case", ["output", "number", "shared", "opset", "columns"])
def test_packed_projections_that_stay(case: str) -> None:
    """What else reads them, or they could not be cut."""
    model = packed_projections()
    tensors, nodes = {t.name: t for t in model.graph.initializer}, {n.name: n for n in model.graph.node}
    if case == "output":
        model.graph.output.append(helper.make_tensor_value_info("projected", TensorProto.FLOAT, None))
    if case == "number":
        tensors["qkv_bias"].CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "qkv_bias"))
    if case == "shared":
        model.graph.node.append(helper.make_node("MatMul", ["x", "qkv"], ["again"]))
        model.graph.output.append(helper.make_tensor_value_info("again", TensorProto.FLOAT, None))
    if case == "opset":
        model.opset_import[0].version = 12
    if case == "columns":
        next(a for a in nodes["attend"].attribute if a.name == "num_heads").i = 5
    view = load(model)
    assert GraphForm(queries=True).seams()(load(packed_projections())).modified
    assert not GraphForm(queries=True).seams()(view).modified
