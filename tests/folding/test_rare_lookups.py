"""Rare words of a table that is only looked up in take fewer numbers than others, at least loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.budget.costs.weights import count_parameters
from onnxfold.cluster.clusterings.rotation import rotations, seen_moments
from onnxfold.cluster.plan import FoldPlan
from onnxfold.folding.open_model import GraphForm, open_scopes
from onnxfold.folding.probes.sensitivity import Probe, measured_sensitivities
from onnxfold.folding.probes.trials import relative_error
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import PRIOR, WRITTEN
from onnxfold.inputs.tokens.answers import TokenAnswers, TokenFacts
from onnxfold.inputs.tokens.embedding import look_up
from onnxfold.inspection import inspect_model
from onnxfold.language.lookups import RARE_ELSEWHERE, is_part, row_chances
from onnxfold.passes.merge.fold_channels import FoldChannels
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.passes.seams.tables import SplitLookups
from testing.compare import relative_difference
from testing.models import run

WORDS, WIDTH, RANK, HIDDEN = 370, 8, 3, 12
#: Those that are half as rare, those between them and the common ones, and the rarest; some special ones follow.
CLASSES = (range(120, 180), range(180, 240), range(240, 360))
RARE = CLASSES[-1]
IDS = {"input_ids": np.random.default_rng(9).integers(0, WORDS, (6, 40))}
#: All words of a class, for a goal that names it.
RAREST = f"look_up_from_{RARE.start}"


def sentences(
    *, ranks: tuple[int, ...] = (WIDTH, WIDTH, RANK), kind: int = TensorProto.INT64, opset: int = 17
) -> onnx.ModelProto:
    """A feed-forward layer on words; the rows of each class have some rank."""
    random = np.random.default_rng(0)
    table = random.standard_normal((WORDS, WIDTH))
    for ids, rank in zip(CLASSES, ranks, strict=True):
        rows = random.standard_normal((len(ids), rank)) @ random.standard_normal((rank, WIDTH))
        table[ids.start : ids.stop] = rows / np.sqrt(rank)
    weights = {
        "table": table,
        "up": random.standard_normal((WIDTH, HIDDEN)) / 3,
        "down": random.standard_normal((HIDDEN, WIDTH)) / 4,
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"], "look_up"),
        helper.make_node("Tanh", ["rows"], ["bounded"], "tanh"),
        helper.make_node("MatMul", ["bounded", "up"], ["hidden"], "up_proj"),
        helper.make_node("Relu", ["hidden"], ["active"], "relu"),
        helper.make_node("MatMul", ["active", "down"], ["written"], "down_proj"),
        helper.make_node("Add", ["written", "bounded"], ["y"], "add"),
    ]
    held = [numpy_helper.from_array(np.ascontiguousarray(v, np.float32), name) for name, v in weights.items()]
    infos = [helper.make_tensor_value_info("input_ids", kind, ["batch", "length"])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", WIDTH])]
    graph = helper.make_graph(nodes, "g", infos, results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def tokenizer(place: Path) -> Path:
    """Write a tokenizer with words in the order of how common they are, and special ones behind them."""
    scores = [[f"w{i}", -0.02 * i] for i in range(RARE.stop)]
    added = [{"id": i, "content": f"<{i}>", "special": True} for i in range(RARE.stop, WORDS)]
    place.write_text(json.dumps({"model": {"type": "Unigram", "vocab": scores}, "added_tokens": added}))
    return place


def folded(model: onnx.ModelProto, place: Path, goals: dict[str, float], **more: Any) -> Any:
    """Fold the classes that are named, and nothing else."""
    rest = {f"look_up_from_{ids.start}": 0.0 for ids in CLASSES} | {"look_up": 0.0, "up_proj": 0.0}
    return onnxfold.fold(model, 1e-6, ratios=rest | goals, tokenizer=tokenizer(place), verify=False, **more)


def shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    return {t.name: tuple(t.dims) for t in model.graph.initializer}


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
@pytest.mark.parametrize("classes", [[RARE], [range(RARE.start, WORDS)], CLASSES], ids=str)
def test_a_split_table_finds_the_same_rows_and_is_one_where_it_stays(classes: list[range], kind: int) -> None:
    model = sentences(kind=kind)
    feeds = {"input_ids": IDS["input_ids"].astype(helper.tensor_dtype_to_np_dtype(kind))}
    view = load(model)
    NORMALIZE(view)
    before = to_model(view).SerializeToString(deterministic=True)
    for ids in reversed(classes):
        assert SplitLookups(ids.start, ids.stop)(view).modified
    assert look_up(view, "input_ids") == look_up(load(model), "input_ids")
    onnx.checker.check_model(to_model(view), full_check=True)
    np.testing.assert_array_equal(run(model, feeds)[0], run(to_model(view), feeds)[0])
    (scope,) = open_scopes(load(model), GraphForm(tables=True, rare=tuple(classes)))
    scope.with_seams(frozenset())
    assert to_model(scope.view).SerializeToString(deterministic=True) == before


def test_every_row_is_as_common_as_its_word() -> None:
    view, chances = load(sentences()), np.random.default_rng(3).random(WORDS)
    for ids in reversed(CLASSES):
        SplitLookups(ids.start, ids.stop)(view)
    for ids in CLASSES:
        table = f"table_from_{ids.start}"
        found = row_chances(view, table, chances)
        assert len(found) == len(ids) + 2
        np.testing.assert_array_equal(found[1:-1], chances[ids.start : ids.stop])
    rest = row_chances(view, "table", chances)
    np.testing.assert_array_equal(rest[: CLASSES[0].start], chances[: CLASSES[0].start])
    np.testing.assert_array_equal(rest[-(WORDS - RARE.stop) :], chances[RARE.stop :])
    assert rest.sum() == pytest.approx(chances.sum())


def test_rare_rows_of_low_rank_are_cut_to_it_at_no_loss(tmp_path: Path) -> None:
    """No word of theirs is in the inputs: what is known of the rows decides."""
    model = sentences()
    common = {"input_ids": IDS["input_ids"] % RARE.start}
    result = folded(model, tmp_path / "t.json", {RAREST: 1 - RANK / WIDTH}, calibration=common)
    found = shapes(result.model)
    # Rows of zeros stand around them, and one in their place.
    assert found["table"] == (WORDS - len(RARE) + 1, WIDTH)
    assert {(len(RARE) + 2, RANK), (RANK, WIDTH)} <= set(found.values())
    names = {g.name: (g.folded_width, g.cluster) for g in result.report.groups}
    assert names[RAREST] == (RANK, "rotation")
    onnx.checker.check_model(result.model, full_check=True)
    assert relative_difference(run(model, IDS), run(result.model, IDS)) <= 1e-5
    assert look_up(load(result.model), "input_ids").rows == WORDS
    assert result.report.after.parameters == count_parameters(load(result.model))


@pytest.mark.parametrize("narrow", [0, 1, 2])
def test_each_class_of_rare_words_goes_by_itself(tmp_path: Path, narrow: int) -> None:
    """Whichever of them is narrower, ids find their rows, and common words are one table with what they can be."""
    ranks = [WIDTH] * len(CLASSES)
    ranks[narrow] = RANK
    model, ids = sentences(ranks=(ranks[0], ranks[1], ranks[2])), CLASSES[narrow]
    result = folded(model, tmp_path / "t.json", {f"look_up_from_{ids.start}": 1 - RANK / WIDTH}).model
    assert relative_difference(run(model, IDS), run(result, IDS)) <= 1e-5
    assert look_up(load(result), "input_ids").rows == WORDS
    outside = sum(len(one) + 1 for one in CLASSES[narrow + 1 :]) - len(CLASSES[narrow + 1 :])
    assert (len(ids) + 2, RANK) in shapes(result).values()
    assert WORDS - len(ids) + 1 - outside <= shapes(result)["table"][0] <= WORDS - len(ids) + 1 + len(CLASSES)


def test_a_fold_takes_numbers_of_rare_words_first(tmp_path: Path) -> None:
    """Words that are drawn by frequency are common ones, and every class is weighed by what its words lose."""
    model = sentences(ranks=(WIDTH, WIDTH, WIDTH))
    result = onnxfold.fold(model, 0.2, tokenizer=tokenizer(tmp_path / "t.json"), objective="weights", verify=False)
    widths = {g.name: g.folded_width for g in result.report.groups}
    assert widths[RAREST] < WIDTH
    assert widths[RAREST] <= min(widths[f"look_up_from_{ids.start}"] for ids in CLASSES[:2])


@pytest.mark.parametrize(("kind", "factor"), [(WRITTEN, RARE_ELSEWHERE), (PRIOR, 1.0)])
def test_a_probe_measures_what_the_fold_does(kind: str, factor: float) -> None:
    """The rows of rare words in fewer numbers, as common as they are in the inputs, and more so in other texts."""
    (scope,) = open_scopes(load(sentences(ranks=(WIDTH,) * 3)), GraphForm(tables=True, rare=(RARE,)))
    view, groups = scope.analysed, scope.analysis.groups
    words = np.full(WORDS, 1.0 / WORDS)
    inputs = ModelInputs([IDS], kind, "", tokens=TokenFacts(TokenAnswers(WORDS), words=words))
    moments = [seen_moments(view, group, (), words) for group in groups]
    (i,) = (i for i, group in enumerate(groups) if group.name == RAREST)
    assert groups[i].is_part
    found = rotations(moments[i])
    probe = Probe(groups[i], found, (), of_tokens=True)
    factors = measured_sensitivities(view, groups, inputs, {i: probe}, lambda *told: None)
    narrow = view.copy()
    FoldChannels(FoldPlan((groups[i],), (found.partition(WIDTH // 2),)), (), ())(narrow)
    was, is_now = (run(to_model(one), IDS)[0].reshape(-1, WIDTH) for one in (view, narrow))
    lost = relative_error([was], [is_now])
    assert lost > 0.01
    assert factors[i] * found.errors[WIDTH // 2] == pytest.approx(factor * lost, rel=1e-3)


@pytest.mark.parametrize("case", ["opset", "few", "output", "read twice", "all", "type"])
def test_what_stays_as_it_is(case: str) -> None:
    model, ids = sentences(opset=11 if case == "opset" else 17), RARE
    if case == "few":
        ids = range(RARE.start, RARE.start + 4 * WIDTH - 1)
    if case == "all":
        ids = range(4 * WIDTH - 1, WORDS)
    if case == "output":
        model.graph.output.append(helper.make_tensor_value_info("rows", TensorProto.FLOAT, None))
    if case == "read twice":
        model.graph.node.append(helper.make_node("Gather", ["table", "input_ids"], ["again"]))
        model.graph.output.append(helper.make_tensor_value_info("again", TensorProto.FLOAT, None))
    if case == "type":  # of what an operator that nothing is known of makes of ids
        model.opset_import.append(helper.make_opsetid("other", 1))
        model.graph.node.insert(0, helper.make_node("Hash", ["input_ids"], ["hashed"], domain="other"))
        model.graph.node[1].input[1] = "hashed"
    view = load(model)
    NORMALIZE(view)
    assert not SplitLookups(ids.start, ids.stop)(view).modified


def test_tables_that_other_ids_are_counted_for_are_no_parts() -> None:
    """Positions that begin with 1, in a table that was never trained: it is no part of the table of words."""
    model = sentences()
    model.graph.initializer.extend(
        numpy_helper.from_array(values, name)
        for name, values in (("places", np.zeros((50, WIDTH), np.float32)), ("one", np.array(1)))
    )
    model.graph.input.append(helper.make_tensor_value_info("positions", TensorProto.INT64, ["batch", "length"]))
    model.graph.node[0].output[0] = "words"
    nodes = [
        helper.make_node("Sub", ["positions", "one"], ["place"]),
        helper.make_node("Gather", ["places", "place"], ["placed"]),
        helper.make_node("Add", ["placed", "words"], ["rows"]),
    ]
    for i, node in enumerate(nodes, 1):
        model.graph.node.insert(i, node)
    view = load(model)
    assert not is_part(view, "places")
    assert not is_part(view, "table")
    assert SplitLookups(RARE.start, RARE.stop)(view).modified
    assert not is_part(view, "places")
    assert is_part(view, "table")
    assert is_part(view, f"table_from_{RARE.start}")


@pytest.mark.parametrize("options", [{"method": "fold-ar"}, {"allocation": "uniform"}])
def test_where_products_are_not_wanted_tables_stay(tmp_path: Path, options: dict[str, Any]) -> None:
    known = tokenizer(tmp_path / "t.json")
    result = onnxfold.fold(sentences(), 0.01, tokenizer=known, verify=False, **options)
    assert shapes(result.model)["table"] == (WORDS, WIDTH)


def test_an_inspection_shows_classes_of_rare_words(tmp_path: Path) -> None:
    tokenizer(tmp_path / "tokenizer.json")
    onnx.save(sentences(), tmp_path / "model.onnx")
    seen = inspect_model(tmp_path / "model.onnx")
    assert {"look_up", *(f"look_up_from_{ids.start}" for ids in CLASSES)} <= {group.name for group in seen.groups}
    assert seen.parameters == count_parameters(load(sentences()))
