"""Rare words of a table that words are looked up in and scored by take fewer numbers than others, at least loss."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.budget.costs.running import MacsCost
from onnxfold.budget.costs.weights import WeightCost, count_parameters
from onnxfold.cluster.clusterings.rotation import shared_rotations
from onnxfold.cluster.plan import FoldPlan
from onnxfold.errors import MemoryLimitError
from onnxfold.folding.open_model import GraphForm, open_scopes
from onnxfold.folding.probes.sensitivity import STAGE, Probe, sensitivities
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.answers import Answers, TokenAnswers
from onnxfold.inputs.tokens.embedding import look_up
from onnxfold.inputs.tokens.tokenizer import read_tokenizer
from onnxfold.inspection import inspect_model
from onnxfold.passes.merge.fold_channels import FoldChannels
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.passes.seams.tied_tables import SplitTables
from onnxfold.statistics.observe import FitRules, Observing
from testing.compare import relative_difference
from testing.models import run
from testing.observing import observed

#: Words, the width of their table, the rank of its rare rows, and hidden channels.
WORDS, WIDTH, RANK, HIDDEN = 37_200, 16, 5, 24
RARE = range(24_000, 36_000)
IDS = {"input_ids": np.random.default_rng(9).integers(0, WORDS, (3, 5))}
SHAPE = {"input_ids": (1, 40)}
#: Those that are half as rare, and those between them and the common ones.
CLASSES = (range(12_000, 18_000), range(18_000, 24_000), RARE)
RAREST = f"look_up_from_{RARE.start}"
#: To write text takes time where there are so many words.
GIVEN: dict[str, Any] = {
    "calibration": {"input_ids": IDS["input_ids"].repeat(4, axis=0)},
    "input_seconds": 0.01,
    "verify": False,
}


def tied(*, rank: int = RANK, turned: bool = False, opset: int = 17, words: int = WORDS) -> onnx.ModelProto:
    """A feed-forward layer on words that it scores by the same table; rare rows have some rank."""
    random = np.random.default_rng(0)
    table = random.standard_normal((words, WIDTH))
    rare = random.standard_normal((len(RARE), rank)) @ random.standard_normal((rank, WIDTH))
    table[RARE.start : RARE.stop] = rare[: words - RARE.start]
    weights = {
        "table": table.T if turned else table,
        "up": random.standard_normal((WIDTH, HIDDEN)) / 4,
        "down": random.standard_normal((HIDDEN, WIDTH)) / 5,
        "scale": random.uniform(0.3, 0.6, WIDTH),
    }
    data, head = ("turned", "table") if turned else ("table", "turned")
    nodes = [
        helper.make_node("Transpose", ["table"], ["turned"], "turn", perm=[1, 0]),
        helper.make_node("Gather", [data, "input_ids"], ["rows"], "look_up"),
        helper.make_node("LayerNormalization", ["rows", "scale"], ["normed"], "norm", axis=-1),
        helper.make_node("MatMul", ["normed", "up"], ["hidden"], "up_proj"),
        helper.make_node("Relu", ["hidden"], ["active"], "relu"),
        helper.make_node("MatMul", ["active", "down"], ["written"], "down_proj"),
        helper.make_node("Add", ["written", "normed"], ["states"], "add"),
        helper.make_node("MatMul", ["states", head], ["logits"], "scores"),
    ]
    infos = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
    results = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", words])]
    held = [numpy_helper.from_array(np.ascontiguousarray(v, np.float32), name) for name, v in weights.items()]
    graph = helper.make_graph(nodes, "g", infos, results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def tokenizer(place: Path, *, worse: int = -1) -> Path:
    """Write a tokenizer with words in the order of how common they are, and special ones behind them."""
    place.write_text(_tokenizer_text(worse))
    return place


@cache
def _tokenizer_text(worse: int) -> str:
    scores = [[f"w{i}", -0.00005 * i] for i in range(RARE.stop)]
    if worse >= 0:
        scores[worse][1] = 0.0
    added = [{"id": i, "content": f"<{i}>", "special": True} for i in range(RARE.stop, WORDS)]
    return json.dumps({"model": {"type": "Unigram", "vocab": scores}, "added_tokens": added})


def split(model: onnx.ModelProto) -> GraphView:
    view = load(model)
    NORMALIZE(view)
    assert SplitTables(RARE.start, RARE.stop)(view).modified
    return view


@pytest.mark.parametrize("turned", [False, True])
def test_a_table_that_is_scored_by_is_one_weight_however_small(turned: bool) -> None:
    """Turned once more, it would count twice, and a fold would add a table before it removes anything."""
    model = tied(turned=turned, words=RARE.start + 100)
    view = load(model)
    NORMALIZE(view)
    assert count_parameters(view) == count_parameters(load(model))


@pytest.mark.parametrize("stop", [RARE.stop, WORDS])
@pytest.mark.parametrize("turned", [False, True])
def test_a_split_table_finds_the_same_rows_and_is_one_where_it_stays(stop: int, turned: bool) -> None:
    model = tied(turned=turned)
    view = load(model)
    NORMALIZE(view)
    before = to_model(view).SerializeToString(deterministic=True)
    assert SplitTables(RARE.start, stop)(view).modified
    assert not SplitTables(RARE.start, stop)(view).modified
    assert look_up(view, "input_ids") == look_up(load(model), "input_ids")
    onnx.checker.check_model(to_model(view), full_check=True)
    assert relative_difference(run(model, IDS), run(to_model(view), IDS)) <= 1e-12
    (scope,) = open_scopes(load(model), GraphForm(tables=True, rare=(range(RARE.start, stop),)))
    scope.with_seams(frozenset())
    assert to_model(scope.view).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("turned", [False, True])
def test_rare_rows_of_low_rank_are_cut_to_it_at_no_loss(tmp_path: Path, turned: bool) -> None:
    model, known = tied(turned=turned), tokenizer(tmp_path / "tokenizer.json")
    goal = {RAREST: 1 - RANK / WIDTH, "look_up_from_1*": 0.0, "up_proj": 0.0}
    result = onnxfold.fold(model, 1e-6, ratios=goal, tokenizer=known, **GIVEN)
    shapes = {tuple(t.dims) for t in result.model.graph.initializer}
    others = (WORDS - len(RARE), WIDTH)
    assert {others[::-1] if turned else others, (RANK, len(RARE)), (RANK, WIDTH), (WIDTH, RANK)} <= shapes
    found = {g.name: (g.folded_width, g.cluster) for g in result.report.groups}
    whole = {f"look_up_from_{ids.start}": (WIDTH, "") for ids in CLASSES[:2]}
    assert found == {RAREST: (RANK, "rotation"), "up_proj": (HIDDEN, ""), **whole}
    onnx.checker.check_model(result.model, full_check=True)
    assert relative_difference(run(model, IDS), run(result.model, IDS)) <= 1e-5
    assert look_up(load(result.model), "input_ids").rows == WORDS
    assert result.report.after.parameters == count_parameters(load(result.model))
    # It is not split again, and the axes that are left may be rotated once more.
    (scope,) = open_scopes(load(result.model), GraphForm(tables=True, rare=(RARE,)))
    (group, _) = scope.analysis.groups
    assert (group.size, group.seam.spare, group.seam.widest, group.is_there_to_rotate) == (RANK, (), 0, True)


def test_costs_count_both_bases_where_they_are_needed() -> None:
    (scope,) = open_scopes(load(tied(), SHAPE), GraphForm(tables=True, rare=(RARE,)))
    weights, macs = (cost([(scope.analysed, scope.analysis.groups)]) for cost in (WeightCost, MacsCost))
    rest = 2 * WIDTH * HIDDEN
    for k in (1, 5, 11, WIDTH):
        bases = 2 * k * WIDTH if k < WIDTH else 0
        assert weights([k, HIDDEN]) == (WORDS - len(RARE)) * WIDTH + len(RARE) * k + bases + rest + WIDTH
        assert macs([k, HIDDEN]) == 40 * ((WORDS - len(RARE)) * WIDTH + len(RARE) * k + bases + rest)


def test_a_probe_measures_what_the_fold_does() -> None:
    """Lookups and scores of rare words change at once, as they do in the folded network."""
    (scope,) = open_scopes(load(tied(rank=WIDTH)), GraphForm(tables=True, rare=(RARE,)))
    view, groups = scope.analysed, scope.analysis.groups
    seen = observed(view, groups, [IDS], Observing(FitRules(by_length=True)))
    assert [len(moments) for moments in seen.moments] == [1, 1]
    found = shared_rotations(view, groups[0], seen.moments[0])
    probe = Probe(groups[0], found, seen.moments[0], of_tokens=True)
    (factor, _) = sensitivities(view, groups, [IDS], {0: probe}, tokens=TokenAnswers(WORDS))
    partition = found.partition(WIDTH // 2)
    folded = view.copy()
    FoldChannels(FoldPlan((groups[0],), (partition,)), (), ())(folded)
    measured = Answers(run(tied(rank=WIDTH), IDS)[0]).divergence(run(to_model(folded), IDS)[0])
    assert measured > 0.01
    assert factor * found.errors[WIDTH // 2] == pytest.approx(measured, rel=1e-3)


def test_axes_are_those_that_scores_need() -> None:
    """Where all that is scored lies in some directions, rows keep what they are in these."""
    (scope,) = open_scopes(load(tied(rank=WIDTH)), GraphForm(tables=True, rare=(RARE,)))
    group = scope.analysis.groups[0]
    seen = observed(scope.analysed, scope.analysis.groups, [IDS]).moments[0]
    directions = np.zeros((WIDTH, WIDTH))
    directions[3, 3] = directions[8, 8] = 1.0
    axes = shared_rotations(scope.analysed, group, [replace(seen[0], covariance=directions)]).partition(2)
    row, scored = np.random.default_rng(2).standard_normal((2, WIDTH))
    scored *= np.diag(directions)
    assert scored @ axes.decode @ axes.encode @ row == pytest.approx(scored @ row, rel=0.2)


@pytest.mark.parametrize(
    ("case", "model"),
    [
        ("opset", tied(opset=12)),
        ("few", tied(words=35_000)),
        ("untied", None),
    ],
)
def test_what_stays_as_it_is(case: str, model: onnx.ModelProto | None) -> None:
    if model is None:
        model = tied()
        model.graph.node[-1].input[1] = "head"
        model.graph.initializer.append(numpy_helper.from_array(np.ones((WIDTH, WORDS), np.float32), "head"))
    if case == "opset":
        del model.graph.node[2]
        model.graph.node[2].input[0] = "rows"
        model.graph.node[5].input[1] = "rows"
    view = load(model)
    NORMALIZE(view)
    assert not SplitTables(RARE.start, RARE.stop)(view).modified, case


@pytest.mark.parametrize("options", [{}, {"method": "fold-ar"}, {"allocation": "uniform"}])
def test_without_a_tokenizer_or_where_products_are_not_wanted_tables_stay(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    known = {"tokenizer": tokenizer(tmp_path / "tokenizer.json")} if options else {}
    result = onnxfold.fold(tied(), 0.0005, **options, **known, **GIVEN)
    assert (WORDS, WIDTH) in {tuple(t.dims) for t in result.model.graph.initializer}


def test_rare_words_are_in_classes_where_ids_are_in_order(tmp_path: Path) -> None:
    assert read_tokenizer(tokenizer(tmp_path / "a.json")).rare == CLASSES
    assert not read_tokenizer(tokenizer(tmp_path / "b.json", worse=30_000)).rare


def test_a_fold_cuts_rare_words_by_more_than_pays_at_first(tmp_path: Path) -> None:
    """Two bases cost more than the first numbers per row that go; a narrower table pays.

    Probes of several texts tell their steps in order.
    """
    told: list[tuple[int, int]] = []

    def progress(text: str, done: int, total: int) -> None:
        if text == STAGE:
            told.append((done, total))

    known = tokenizer(tmp_path / "tokenizer.json")
    result = onnxfold.fold(tied(), 0.12, tokenizer=known, progress=progress, **GIVEN)
    widths = {g.name: g.folded_width for g in result.report.groups}
    assert min(widths.values()) <= 11
    assert len({total for _, total in told}) == 1
    assert told == sorted(told)
    assert told[0][0] == 0
    assert [done for done, _ in told].count(0) == 1


@pytest.mark.parametrize("narrow", [0, 1, 2])
def test_each_class_of_rare_words_goes_by_itself(tmp_path: Path, narrow: int) -> None:
    """Whichever of them is narrower, ids and scores stay where they are, and the others are one table again."""
    random = np.random.default_rng(5)
    model, ids = tied(rank=WIDTH), CLASSES[narrow]
    table = next(t for t in model.graph.initializer if t.name == "table")
    values = np.array(numpy_helper.to_array(table))
    values[ids.start : ids.stop] = random.standard_normal((len(ids), 3)) @ random.standard_normal((3, WIDTH))
    table.CopyFrom(numpy_helper.from_array(values, "table"))
    goal = {f"look_up_from_{one.start}": 0.0 for one in CLASSES} | {f"look_up_from_{ids.start}": 1 - 3 / WIDTH}
    known = tokenizer(tmp_path / "tokenizer.json")
    folded = onnxfold.fold(model, 1e-6, ratios=goal | {"up_proj": 0.0}, tokenizer=known, **GIVEN).model
    assert relative_difference(run(model, IDS), run(folded, IDS)) <= 1e-5
    assert look_up(load(folded), "input_ids").rows == WORDS
    shapes = {tuple(t.dims) for t in folded.graph.initializer}
    assert (3, len(ids)) in shapes
    assert (WIDTH, WIDTH) not in shapes
    assert (WORDS - len(ids), WIDTH) in shapes


def test_an_inspection_counts_what_may_be_narrower_once(tmp_path: Path) -> None:
    """Of the table, the common words alone are left as they are."""
    tokenizer(tmp_path / "tokenizer.json")
    onnx.save(tied(), tmp_path / "model.onnx")
    seen = inspect_model(tmp_path / "model.onnx")
    assert {f"look_up_from_{ids.start}" for ids in CLASSES} <= {group.name for group in seen.groups}
    common = WIDTH * (WORDS - sum(map(len, CLASSES)))
    assert {r.weights for r in seen.refusals if r.weight == "table"} == {common}


def test_scores_of_all_words_are_not_asked_for_on_all_tokens() -> None:
    """Only a few of them show what a fold does to scores."""
    ids = np.random.default_rng(1).integers(0, WORDS, (60, 40))
    scores = 4 * ids.size * WORDS
    options: dict[str, Any] = {"calibration": {"input_ids": ids}, "verify": False, "input_seconds": 0.01}
    assert onnxfold.fold(tied(), 0.0005, max_memory=scores, **options).report.groups
    with pytest.raises(MemoryLimitError, match="running the network on 16 samples"):
        onnxfold.fold(tied(), 0.0005, max_memory=scores // 2, **options)
