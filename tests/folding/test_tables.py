"""Tables of words become narrower than what reads them, where this loses least; else nothing is left of the attempt."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.budget.costs.memory import FlashCost
from onnxfold.budget.costs.running import MacsCost, count_macs
from onnxfold.budget.costs.weights import WeightCost, count_parameters
from onnxfold.folding.open_model import GraphForm, open_scopes
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.embedding import look_up
from onnxfold.inspection import inspect_model
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.passes.seams.tables import FactorTables
from testing.compare import relative_difference
from testing.models import run

WORDS, WIDTH, RANK, HIDDEN = 300, 24, 9, 32
IDS = {"input_ids": np.random.default_rng(9).integers(0, WORDS, (3, 7))}


def sentences(*, rank: int = RANK, words: int = WORDS, tied: bool = False, **more: Any) -> onnx.ModelProto:
    """An encoder of words whose table has some rank: a norm, a feed-forward layer, a sum."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32), name)

    factors = random.standard_normal((words, rank)), random.standard_normal((rank, WIDTH))
    table = (factors[0] @ factors[1]).astype(np.float32)
    weights = [
        numpy_helper.from_array(table, "table"), weight("up", WIDTH, HIDDEN), weight("down", HIDDEN, WIDTH),
        numpy_helper.from_array(np.ones(WIDTH, np.float32), "scale"), *more.get("weights", ()),
    ]  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"], "look_up"),
        helper.make_node("LayerNormalization", ["rows", "scale"], ["normed"], "norm", axis=-1),
        helper.make_node("MatMul", ["normed", "up"], ["hidden"], "up_proj"),
        helper.make_node("Relu", ["hidden"], ["active"], "relu"),
        helper.make_node("MatMul", ["active", "down"], ["written"], "down_proj"),
        helper.make_node("Add", ["written", "normed"], ["states" if tied else "y"], "add"),
        *more.get("nodes", ()),
    ]
    if tied:
        weights.append(numpy_helper.from_array(table.T.copy(), "head"))
        nodes.append(helper.make_node("MatMul", ["states", "head"], ["y"], "scores"))
    infos = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in more.get("outputs", ("y",))]
    graph = helper.make_graph(nodes, "g", infos, results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    return {t.name: tuple(t.dims) for t in model.graph.initializer}


def _rotatable(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]] | None = None) -> tuple[GraphView, list[Any]]:
    (scope,) = open_scopes(load(model, shapes), GraphForm(tables=True))
    return scope.analysed, scope.analysis.groups


def test_a_table_of_low_rank_is_cut_to_it_at_no_loss() -> None:
    model = sentences()
    before = count_parameters(load(model))
    goal = 1.0 - (before - WORDS * WIDTH + (WORDS + WIDTH) * RANK) / before
    result = onnxfold.fold(model, goal, objective="weights", verify=False)
    shapes = _shapes(result.model)
    assert shapes["table"] == (WORDS, RANK)
    assert (shapes["up"], shapes["down"]) == ((WIDTH, HIDDEN), (HIDDEN, WIDTH))
    assert (RANK, WIDTH) in shapes.values()
    assert [(g.name, g.folded_width, g.cluster) for g in result.report.groups] == [
        ("look_up", RANK, "rotation"), ("up_proj", HIDDEN, "")
    ]  # fmt: skip
    assert not any(g.fell_back for g in result.report.groups)
    onnx.checker.check_model(result.model, full_check=True)
    assert relative_difference(run(model, IDS), run(result.model, IDS)) <= 1e-5
    assert result.report.after.parameters == count_parameters(load(result.model))


SHAPE = {"input_ids": (1, 7)}


def test_costs_count_the_product_where_it_is_needed() -> None:
    """The table of V words and n channels, cut to k, is V k weights, and k n of the product; whole, it is V n."""
    view, groups = _rotatable(sentences(), SHAPE)
    found = [(g.name, g.size, g.rotates, g.seam.widest) for g in groups]
    assert found == [("look_up", WIDTH, True, (WIDTH * WORDS - 1) // (WORDS + WIDTH)), ("up_proj", HIDDEN, False, 0)]
    weights, macs, flash = (cost([(view, groups)]) for cost in (WeightCost, MacsCost, FlashCost))
    rest = 2 * WIDTH * HIDDEN
    for k in (1, 5, 22, WIDTH):
        product = k * WIDTH if k < WIDTH else 0
        assert weights([k, HIDDEN]) == WORDS * k + product + rest + WIDTH
        assert macs([k, HIDDEN]) == 7 * (rest + product)
        assert flash([k, HIDDEN]) - 4 * weights([k, HIDDEN]) == flash([WIDTH, HIDDEN]) - 4 * weights([WIDTH, HIDDEN])
    assert weights([WIDTH, HIDDEN]) == count_parameters(load(sentences()))
    assert macs([WIDTH, HIDDEN]) == count_macs(load(sentences(), SHAPE))
    folded = onnxfold.fold(
        sentences(), 1e-6, ratios={"look_up": 1 - 5 / WIDTH, "up_proj": 0.0}, input_shapes=SHAPE, samples=16,
        verify=False,
    ).model  # fmt: skip
    assert count_parameters(load(folded)) == weights([5, HIDDEN])
    assert count_macs(load(folded, SHAPE)) == macs([5, HIDDEN])


def test_nothing_is_left_where_the_table_stays() -> None:
    """The product is the identity, and it is not written."""
    model = sentences()
    view = load(model)
    NORMALIZE(view)
    before = to_model(view).SerializeToString(deterministic=True)
    assert FactorTables()(view).modified
    assert [n.op_type for n in view.nodes][:2] == ["Gather", "MatMul"]
    np.testing.assert_array_equal(run(model, IDS)[0], run(to_model(view), IDS)[0])
    assert not FactorTables()(view).modified
    (scope,) = open_scopes(load(model), GraphForm(tables=True))
    scope.with_seams(frozenset())
    assert to_model(scope.view).SerializeToString(deterministic=True) == before

    kept = onnxfold.fold(model, 0.05, keep=["look_up"], verify=False).model
    assert [n.op_type for n in kept.graph.node] == [n.op_type for n in model.graph.node]
    assert _shapes(kept).keys() == _shapes(model).keys()
    assert [tuple(n.input) for n in kept.graph.node] == [tuple(n.input) for n in model.graph.node]


def test_widths_that_save_nothing_are_no_widths() -> None:
    """From a width of 23 on, table and product are larger than the table was."""
    view, groups = _rotatable(sentences())
    cost = WeightCost([(view, groups)])
    whole = cost([WIDTH, HIDDEN])
    assert cost([groups[0].seam.widest, HIDDEN]) < whole <= cost([groups[0].seam.widest + 1, HIDDEN])
    for ratio in (0.01, 0.06):
        model = onnxfold.fold(sentences(), ratios={"look_up": ratio}, sparsity=0.03, verify=False).model
        assert _shapes(model)["table"][1] in (WIDTH, groups[0].seam.widest)


def test_rare_words_lose_first() -> None:
    """What inputs show often is kept: words of one direction are never seen, all others are common."""
    model = sentences(rank=WIDTH)
    table = next(t for t in model.graph.initializer if t.name == "table")
    values = np.array(numpy_helper.to_array(table))
    values[: WORDS // 2, 12:] = 0.0
    values[WORDS // 2 :, :12] = 0.0
    table.CopyFrom(numpy_helper.from_array(values, "table"))
    ids = np.random.default_rng(1).integers(0, WORDS // 2, (64, 20))
    result = onnxfold.fold(
        model, ratios={"look_up": 0.5, "up_proj": 0.0}, sparsity=1e-6, calibration={"input_ids": ids}, verify=False
    )
    assert _shapes(result.model)["table"] == (WORDS, 12)
    common, rare = (
        relative_difference(run(model, feeds), run(result.model, feeds))
        for feeds in ({"input_ids": ids[:4]}, {"input_ids": ids[:4] + WORDS // 2})
    )
    assert common <= 0.02
    assert rare >= 20 * common


@pytest.mark.parametrize(
    ("case", "model"),
    [
        ("tied", sentences(tied=True)),
        ("small", sentences(words=60)),
        ("output", sentences(outputs=("y", "rows"))),
        (
            "read twice",
            sentences(nodes=[helper.make_node("Gather", ["table", "input_ids"], ["again"])], outputs=("y", "again")),
        ),
    ],
)
def test_what_stays_as_it_is(case: str, model: onnx.ModelProto) -> None:
    view = load(model)
    NORMALIZE(view)
    assert not FactorTables()(view).modified, case


@pytest.mark.parametrize("options", [{"method": "fold-ar"}, {"allocation": "uniform"}, {"max_flash": "35K"}])
def test_tables_are_left_alone_where_products_are_not_wanted(options: dict[str, str]) -> None:
    goal = {} if "max_flash" in options else {"sparsity": 0.05}
    result = onnxfold.fold(sentences(), **goal, **options, input_shapes=SHAPE, samples=16, verify=False)
    assert _shapes(result.model)["table"] == (WORDS, WIDTH)


def test_positions_are_found_behind_a_product() -> None:
    """How long sequences may be is read from a table as wide as the words are behind their product."""
    places = numpy_helper.from_array(np.zeros((50, WIDTH), np.float32), "places")
    firsts = numpy_helper.from_array(np.arange(7), "firsts")
    nodes = [helper.make_node("Gather", ["places", "firsts"], ["unused"])]
    model = sentences(weights=[places, firsts], nodes=nodes, outputs=("y", "unused"))
    folded = onnxfold.fold(model, 0.3, objective="weights", verify=False).model
    assert _shapes(folded)["table"][1] < WIDTH
    found = [look_up(load(one), "input_ids") for one in (model, folded)]
    assert found[0] == found[1]
    assert found[0].longest == 48


def test_an_inspection_shows_the_table_that_a_fold_cuts_and_no_weight_of_ours() -> None:
    model = sentences()
    seen = inspect_model(model)
    assert "look_up" in {producer for group in seen.to_dict()["groups"] for producer in group["producers"]}
    assert {refusal.node for refusal in seen.refusals} == {"up_proj", "down_proj"}
    assert seen.parameters == count_parameters(load(model))
    assert seen.size is not None
    assert seen.size.macs == seen.share.weights == 2 * WIDTH * HIDDEN
