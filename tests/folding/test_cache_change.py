"""Heads in caches go where that is allowed: whole groups of them, in all layers equally many unless asked otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.budget.allocate import TiedWidths
from onnxfold.budget.costs.memory import RamCost
from onnxfold.budget.costs.running import MacsCost
from onnxfold.budget.costs.weights import WeightCost
from onnxfold.cli import cli
from onnxfold.config import NOTHING
from onnxfold.errors import ConfigError
from onnxfold.folding.fold_result import FoldResult
from onnxfold.folding.open_model import GraphForm, OpenedModel, Opening, open_model
from onnxfold.progress import silent
from testing.genai_models import HEADS, INNER, SIZE, genai_decoder
from testing.language_models import WIDTH, WORDS, attention_decoder, decoder
from testing.models import chain_conv, run

LAYERS, SHARED = 2, 3
FAST: dict[str, Any] = {"method": "prune-l1", "samples": 8, "verify": False}


def _grouped() -> onnx.ModelProto:
    return genai_decoder("packed", layers=LAYERS, shared=SHARED)


def _opened(model: onnx.ModelProto, *, per_layer: bool = False) -> OpenedModel:
    return open_model(model, NOTHING, silent, Opening(GraphForm(caches=True, per_layer=per_layer)))


def _cached(result: FoldResult) -> list[int]:
    """Widths of the groups that hold heads, which have few channels."""
    return [group.folded_width for group in result.report.groups if group.width <= HEADS]


def _cache_sizes(model: onnx.ModelProto) -> dict[str, int]:
    infos = [i for i in (*model.graph.input, *model.graph.output) if len(i.type.tensor_type.shape.dim) > 3]
    return {i.name: i.type.tensor_type.shape.dim[-3].dim_value for i in infos}


def _feeds(model: onnx.ModelProto, heads: dict[str, int]) -> dict[str, np.ndarray[Any, Any]]:
    ids = np.random.default_rng(3).integers(0, WORDS, (2, 9))
    caches = {i.name: i.type.tensor_type.shape.dim for i in model.graph.input if i.name.startswith("past")}
    batch = {4: (2,), 5: (2, 2)}  # keys and values may be together
    shapes = {name: (*batch[len(dims)], heads[name], 0, dims[-1].dim_value) for name, dims in caches.items()}
    empty = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), **empty}


def test_caches_stay_by_default() -> None:
    result = onnxfold.fold(_grouped(), channel_ratio=0.5, **FAST)
    assert set(_cache_sizes(result.model).values()) == {SHARED}
    assert [group.width for group in result.report.groups] == [HEADS, INNER] * LAYERS


FORMS = {
    "grouped queries": _grouped,
    "decomposed": lambda: decoder(layers=LAYERS),
    "keys and values together": lambda: attention_decoder(layers=LAYERS),
}


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_whole_groups_go_and_the_shapes_are_written(make: Callable[[], onnx.ModelProto]) -> None:
    model = make()
    (heads,) = set(_cache_sizes(model).values())
    result = onnxfold.fold(model, channel_ratio=0.4, method="fold-ar", samples=8, cache=None, allow_cache_change=True)
    folded = result.model
    assert _cache_sizes(folded) == dict.fromkeys(_cache_sizes(model), heads - 1)
    assert [i.name for i in folded.graph.input] == [i.name for i in model.graph.input]
    for node in (n for n in folded.graph.node if n.op_type == "GroupQueryAttention"):
        counts = {a.name: a.i for a in node.attribute}
        assert (counts["num_heads"], counts["kv_num_heads"]) == (4, 2)
    outputs = run(folded, _feeds(folded, _cache_sizes(folded)))
    stated = list(_cache_sizes(folded).values())
    assert {o.shape[-3] for o in outputs[1:]} == set(stated)
    assert result.report.fidelity is not None, result.report.notes
    assert any(f"caches: {heads - 1} in place of {heads}" in note for note in result.report.notes)
    compared = onnxfold.compare(model, folded)  # each of them on an empty past with its own heads
    assert compared.outputs[0].relative_error == pytest.approx(result.report.fidelity.outputs[0].relative_error)


def test_query_heads_go_inside_the_groups_that_stay() -> None:
    """One query head of every group does nothing, and one group: both go, and nothing is lost."""
    model = genai_decoder("packed", layers=LAYERS, shared=2)
    each = HEADS // 2
    for i in range(LAYERS):
        (weight,) = (t for t in model.graph.initializer if t.name == f"o_{i}_w")
        values = np.array(numpy_helper.to_array(weight)).reshape(HEADS, SIZE, -1)
        values[each:] = 0.0  # the second group
        values[1] = 0.0
        weight.CopyFrom(numpy_helper.from_array(values.reshape(HEADS * SIZE, -1), weight.name))
    before = run(model, _feeds(model, _cache_sizes(model)))[0]
    options: dict[str, Any] = {"samples": 8, "cache": None, "verify": False, "round_to": 1, "objective": "weights"}
    result = onnxfold.fold(model, 0.26, allow_cache_change=True, **options)
    assert set(_cache_sizes(result.model).values()) == {1}
    heads = {group.name: (group.width, group.folded_width) for group in result.report.groups if "qkv" in group.name}
    assert [heads[f"node_qkv_{i} (keys and values)"] for i in range(LAYERS)] == [(2, 1)] * LAYERS
    assert all(heads[f"node_qkv_{i}"][0] == each > heads[f"node_qkv_{i}"][1] for i in range(LAYERS)), heads
    for node in (n for n in result.model.graph.node if n.op_type == "GroupQueryAttention"):
        assert {a.name: a.i for a in node.attribute}["num_heads"] < each
    after = run(result.model, _feeds(result.model, _cache_sizes(result.model)))[0]
    np.testing.assert_allclose(after, before, atol=1e-3 * np.abs(before).max())


def test_groups_that_all_stay_leave_query_heads_free() -> None:
    """Where the goal takes no head from a cache, the fold is the one without the option."""
    model = genai_decoder("packed", layers=3, shared=2)
    for weight in (
        t for t in model.graph.initializer if t.name.startswith("o_")
    ):  # one head of each group does nothing
        values = np.array(numpy_helper.to_array(weight)).reshape(HEADS, SIZE, -1)
        values[[1, 4]] = 0.0
        weight.CopyFrom(numpy_helper.from_array(values.reshape(HEADS * SIZE, -1), weight.name))
    options: dict[str, Any] = {"samples": 32, "cache": None, "verify": False, "round_to": 1}
    free, plain = (onnxfold.fold(model, 0.2, allow_cache_change=allowed, **options) for allowed in (True, False))
    assert set(_cache_sizes(free.model).values()) == {2}
    widths = [[group.folded_width for group in result.report.groups] for result in (free, plain)]
    assert widths[0] == widths[1]
    assert any(group.width == HEADS > group.folded_width for group in free.report.groups)


def test_equal_groups_fold_back_at_no_loss() -> None:
    """Two groups of heads are equal in every layer, other two in each; what reads them may differ."""
    model = _grouped()
    for name, kept, copy in (("qkv_0_w", 0, 1), ("qkv_1_w", 2, 1)):
        (weight,) = (t for t in model.graph.initializer if t.name == name)
        values = np.array(numpy_helper.to_array(weight))
        parts = values.reshape(len(values), -1, SIZE)  # heads of queries, then of keys, then of values
        queries, keys, rows = parts[:, :HEADS], parts[:, HEADS : HEADS + SHARED], parts[:, HEADS + SHARED :]
        each = HEADS // SHARED
        queries[:, copy * each : (copy + 1) * each] = queries[:, kept * each : (kept + 1) * each]
        keys[:, copy], rows[:, copy] = keys[:, kept], rows[:, kept]
        weight.CopyFrom(numpy_helper.from_array(values, name))
    before = run(model, _feeds(model, _cache_sizes(model)))[0]
    for method in ("fold-ls", "fold-ar"):
        options: dict[str, Any] = {"ratios": {"node_qkv*": 0.34}, "channel_ratio": 0.0, "samples": 8, "cache": None}
        folded = onnxfold.fold(model, method=method, verify=False, allow_cache_change=True, **options).model
        after = run(folded, _feeds(folded, _cache_sizes(folded)))[0]
        np.testing.assert_allclose(after, before, atol=2e-5 * np.abs(before).max())


@pytest.mark.parametrize("sparsity", [0.25, 0.45])
@pytest.mark.parametrize("allocation", ["global", "uniform"])
def test_all_layers_keep_equally_many(allocation: str, sparsity: float) -> None:
    model = _grouped()
    for weight in model.graph.initializer:  # the heads of one layer seem to be worth nothing
        if weight.name in ("o_1_w", "qkv_1_w"):
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1e-3, weight.name))
    result = onnxfold.fold(model, sparsity, allocation=allocation, round_to=1, allow_cache_change=True, **FAST)
    assert len({group.folded_width for group in result.report.groups if group.width == SHARED}) <= 1
    assert len(set(_cache_sizes(result.model).values())) == 1
    assert result.report.sparsity == pytest.approx(sparsity, abs=0.06)  # a step of heads is that long


def test_layers_differ_where_that_is_allowed() -> None:
    ratios = {"node_qkv_0": 0.34, "node_qkv_1": 0.67}
    options: dict[str, Any] = {"channel_ratio": 0.0, "ratios": ratios, "allow_cache_change": True, **FAST}
    folded = onnxfold.fold(_grouped(), per_layer_cache=True, **options)
    assert _cached(folded) == [2, 1]
    sizes = _cache_sizes(folded.model)
    assert {name.split(".")[1]: size for name, size in sizes.items()} == {"0": 2, "1": 1}
    run(folded.model, _feeds(folded.model, sizes))
    assert _cached(onnxfold.fold(_grouped(), **options)) == [1, 1]  # what is asked of one layer holds for all
    assert _cached(onnxfold.fold(_grouped(), keep=["node_qkv_1"], sparsity=0.1, allow_cache_change=True, **FAST)) == [
        3,
        3,
    ]


def test_one_cache_that_must_stay_keeps_all() -> None:
    model = _grouped()
    model.graph.node.append(helper.make_node("Identity", ["present.1.value"], ["other"], name="shown"))
    shape = ["batch", SHARED, "total", SIZE]
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, shape))
    result = onnxfold.fold(model, channel_ratio=0.5, allow_cache_change=True, **FAST)
    assert set(_cache_sizes(result.model).values()) == {SHARED}
    assert _cached(result) == [3, 3]  # heads of queries, that is
    whys = [refusal.reason for refusal in result.report.refusals if "qkv" in refusal.node]
    assert any("it must stay as long as the same axis of 'past_key_values.1." in why for why in whys)
    own = onnxfold.fold(model, channel_ratio=0.5, allow_cache_change=True, per_layer_cache=True, **FAST)
    assert {n: s for n, s in _cache_sizes(own.model).items() if ".0." in n} == dict.fromkeys(
        ("past_key_values.0.key", "past_key_values.0.value", "present.0.key", "present.0.value"), 2
    )
    assert {s for n, s in _cache_sizes(own.model).items() if ".0." not in n} == {SHARED}


@pytest.mark.parametrize(
    ("make", "costs"),
    [
        # How long the present of this operator is follows from values, so no memory is counted.
        (_grouped, (WeightCost, MacsCost)),
        (lambda: decoder(layers=LAYERS), (WeightCost, MacsCost, RamCost)),
    ],
    ids=["grouped", "decomposed"],
)
def test_costs_of_tied_widths_are_those_of_all_widths(
    make: Callable[[], onnx.ModelProto], costs: tuple[Callable[[Any], Any], ...]
) -> None:
    opened = _opened(make())
    past, new = 5, 9
    shapes: dict[str, tuple[int, ...]] = {}
    for info in make().graph.input:
        dims = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        shapes[info.name] = (2, past + new if "mask" in info.name else new)
        if "past" in info.name:
            shapes[info.name] = (2, dims[1], past, dims[3])
    opened.view.assume(shapes)
    groups = [group for _, found in opened.graphs for group in found]
    tied = TiedWidths(groups)
    assert tied.numbers == (0, 1, 0, 2)
    sizes = [groups[tied.numbers.index(i)].size for i in range(3)]
    random = np.random.default_rng(0)
    for cost in (made(opened.graphs) for made in costs):
        fewer = cost.renumbered(tied.numbers)
        for _ in range(8):
            widths = [int(random.integers(1, size + 1)) for size in sizes]
            assert fewer(widths) == cost(tied.expand_widths(widths))
    untied = TiedWidths([group for _, found in _opened(make(), per_layer=True).graphs for group in found]).numbers
    assert len(set(untied)) == len(untied)


@pytest.mark.parametrize(
    ("model", "why"),
    [(chain_conv(0), "it has none"), (decoder(past=False), "it has none")],
    ids=["pictures", "no past"],
)
def test_models_without_caches_say_so(model: onnx.ModelProto, why: str) -> None:
    result = onnxfold.fold(model, channel_ratio=0.5, allow_cache_change=True, **FAST)
    assert f"no cache of the model changes: {why}" in result.report.notes


def test_caches_of_a_fixed_length_stay() -> None:
    model = _grouped()
    for info in (i for i in model.graph.input if i.name.startswith("past")):
        info.type.tensor_type.shape.dim[2].dim_value = 7
    result = onnxfold.fold(model, channel_ratio=0.5, allow_cache_change=True, **FAST)
    assert "no cache of the model changes: their length is fixed" in result.report.notes
    assert set(_cache_sizes(result.model).values()) == {SHARED}


def test_the_option_for_layers_needs_the_other() -> None:
    with pytest.raises(ConfigError, match="per_layer_cache changes nothing without allow_cache_change"):
        onnxfold.fold(_grouped(), per_layer_cache=True)


def test_an_inspection_shows_what_a_fold_with_the_same_words_may_change(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_grouped(), path)

    def shown(*options: str) -> Any:
        done = CliRunner().invoke(cli, ["inspect", str(path), "--json", *options])
        return json.loads(done.stdout) if done.exit_code == 0 else done

    def widths(*options: str) -> list[int]:
        return [group["width"] for group in shown(*options)["groups"]]

    assert widths() == [WIDTH, HEADS, INNER] * LAYERS
    assert widths("--allow-cache-change") == [WIDTH, SHARED, INNER] * LAYERS
    assert widths("--allow-cache-change", "--per-layer-cache") == [WIDTH, SHARED, INNER] * LAYERS
    assert [group.rules.tie for group in onnxfold.inspect(path, allow_cache_change=True)] == [None, 0, None] * LAYERS
    assert isinstance(shown("--per-layer-cache").exception, ConfigError)
    onnx.save(decoder(past=False), path)
    assert "no cache of the model changes: it has none" in shown("--allow-cache-change")["notes"]
