"""Dimensions between values and outputs: channels inside heads that stay."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.budget.costs.running import MacsCost, count_macs
from onnxfold.budget.costs.weights import WeightCost, count_parameters
from onnxfold.channels import find_groups, head_axes
from onnxfold.channels.group import ChannelAnalysis
from onnxfold.cluster.clusterings.rotation import rotated_blocks
from onnxfold.cluster.partition import ChannelPartition, select_partition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.errors import ConfigError
from onnxfold.folding.open_model import open_model
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.passes.merge.fold_channels import FoldChannels
from onnxfold.progress import silent
from testing.compare import relative_difference
from testing.models import run
from testing.quick import quick_fold
from testing.zoo.lengths import language_case

HEADS, SIZE, WIDTH = 4, 6, 10
FORMS = ("decomposed", "MultiHeadAttention", "Attention", "Attention-four")


def attention(form: str, *, shared: int = HEADS, values: np.ndarray | None = None) -> onnx.ModelProto:
    """A layer of attention over (batch, 7, 10) with products in front of it and behind it."""
    random = np.random.default_rng(0)
    draw = lambda *shape: random.normal(0, 0.5, shape).astype(np.float32)  # noqa: E731
    inner, held = HEADS * SIZE, shared * SIZE
    weights = {"q_w": draw(WIDTH, inner), "k_w": draw(WIDTH, held), "v_w": draw(WIDTH, held), "o_w": draw(inner, WIDTH)}
    weights |= {"b": draw(held)}
    if values is not None:
        weights["v_w"] = values
    node = partial(helper.make_node)
    nodes = [node("MatMul", ["x", f"{name}_w"], [name], name) for name in "qk"]
    nodes += [node("MatMul", ["x", "v_w"], ["v_0"], "v"), node("Add", ["b", "v_0"], ["v"], "bias")]

    def to_heads(name: str, count: int, perm: list[int]) -> None:
        weights[f"{name}_shape"] = np.array([0, 0, count, SIZE], np.int64)
        nodes.append(node("Reshape", [name, f"{name}_shape"], [f"{name}_split"], f"{name}_split"))
        nodes.append(node("Transpose", [f"{name}_split"], [f"{name}_heads"], f"{name}_heads", perm=perm))

    def from_heads() -> None:
        nodes.append(node("Transpose", ["mixed_heads"], ["mixed_split"], "mixed_split", perm=[0, 2, 1, 3]))
        weights["flat"] = np.array([0, 0, -1], np.int64)
        nodes.append(node("Reshape", ["mixed_split", "flat"], ["mixed"], "mixed"))

    if form == "decomposed":
        for name in "qkv":
            to_heads(name, HEADS, [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3])
        nodes.append(node("MatMul", ["q_heads", "k_heads"], ["scores"], "scores"))
        nodes.append(node("Softmax", ["scores"], ["looks"], "looks", axis=-1))
        nodes.append(node("MatMul", ["looks", "v_heads"], ["mixed_heads"], "mixed_heads"))
        from_heads()
    elif form == "Attention-four":
        for name in "qkv":
            to_heads(name, HEADS if name == "q" else shared, [0, 2, 1, 3])
        nodes.append(node("Attention", ["q_heads", "k_heads", "v_heads"], ["mixed_heads"], "attention"))
        from_heads()
    elif form == "Attention":
        numbers = {"q_num_heads": HEADS, "kv_num_heads": shared}
        nodes.append(node("Attention", ["q", "k", "v"], ["mixed"], "attention", **numbers))
    else:
        weights["b_qkv"] = draw(3 * inner)
        inputs = ["q", "k", "v", "b_qkv"]
        nodes.append(node(form, inputs, ["mixed"], "attention", domain="com.microsoft", num_heads=HEADS))
    nodes.append(node("MatMul", ["mixed", "o_w"], ["y"], "o"))
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 7, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 7, WIDTH])],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _inside(view: GraphView) -> ChannelAnalysis:
    return find_groups(view, heads=head_axes(find_groups(view).groups))


def _folded(view: GraphView, found: ChannelAnalysis, partition: ChannelPartition) -> onnx.ModelProto:
    FoldChannels(FoldPlan(tuple(found.groups), (partition,)), tuple(found.counts), tuple(found.selects))(view)
    folded = to_model(view)
    onnx.checker.check_model(folded, full_check=True)
    return folded


def _feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).normal(size=(3, 7, WIDTH)).astype(np.float32)}


CASES = [(form, HEADS) for form in FORMS] + [("Attention", 2), ("Attention-four", 2)]


@pytest.mark.parametrize(("form", "shared"), CASES)
def test_any_choice_of_dimensions_gives_a_valid_model(form: str, shared: int) -> None:
    """Another one in every head; what stays is what it was."""
    model = attention(form, shared=shared)
    view = load(model)
    found = _inside(view)
    (group,) = found.groups
    assert (group.size, group.block_count, group.is_there_to_rotate) == (shared * SIZE, shared, shared == HEADS)
    kept = np.concatenate([h * SIZE + np.random.default_rng(h).permutation(SIZE)[:4] for h in range(shared)])
    folded = _folded(view, found, select_partition(kept, group.size))
    zeroed = load(model)
    columns = np.repeat((np.isin(np.arange(group.size), kept)).reshape(shared, SIZE), HEADS // shared, axis=0)
    zeroed.set_weight("o_w", zeroed.weight("o_w") * columns.reshape(-1, 1))
    assert relative_difference(run(to_model(zeroed), _feeds()), run(folded, _feeds())) < 1e-5
    shapes = {one.name: tuple(one.dims) for one in folded.graph.initializer}
    assert (shapes["v_w"], shapes["o_w"]) == ((WIDTH, 4 * shared), (4 * HEADS, WIDTH))
    assert shapes["q_w"] == (WIDTH, HEADS * SIZE)


@pytest.mark.parametrize("form", FORMS)
def test_values_of_low_rank_lose_nothing(form: str) -> None:
    """Of every head's six dimensions three are others' sums; no two of them are equal, and each head has other ones."""
    random = np.random.default_rng(3)
    parts = [random.normal(size=(WIDTH, 2)) @ random.normal(size=(2, SIZE)) for _ in range(HEADS)]
    model = attention(form, values=np.concatenate(parts, axis=1).astype(np.float32))
    view = load(model)
    expected, found = run(model, _feeds()), _inside(view)
    (group,) = found.groups
    rows = np.concatenate([view.weight("v_w"), view.weight("b")[None]]).astype(np.float64)
    if form == "MultiHeadAttention":
        rows = np.concatenate([rows, view.weight("b_qkv")[None, -HEADS * SIZE :]])
    columns = view.weight("o_w").astype(np.float64)
    assert group.blocks is not None
    rank = 4 if form == "MultiHeadAttention" else 3
    partition = rotated_blocks([(rows.T @ rows, columns @ columns.T)], group.blocks, rank * HEADS)
    np.testing.assert_allclose(partition.encode @ partition.decode, np.eye(rank * HEADS), atol=1e-9)
    assert relative_difference(expected, run(_folded(view, found, partition), _feeds())) < 1e-4


def test_heads_that_a_cache_keeps_stay_whole() -> None:
    model = attention("Attention")
    (node,) = (n for n in model.graph.node if n.op_type == "Attention")
    node.output.extend(["keys", "values"])
    sizes = ["n", HEADS, 7, SIZE]
    model.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, sizes) for n in ("keys", "values"))
    found = find_groups(load(model), heads=head_axes(find_groups(load(attention("Attention"))).groups))
    assert not found.groups
    assert "values of this size are kept in a cache" in str(found.refusals)


@pytest.mark.parametrize("form", FORMS)
def test_costs_are_what_the_folded_model_costs(form: str) -> None:
    view = load(attention(form))
    found = _inside(view)
    graphs = [(view, found.groups)]
    costs = [cost(graphs)([2 * HEADS]) for cost in (WeightCost, MacsCost)]
    kept = np.concatenate([[h * SIZE, h * SIZE + 1] for h in range(HEADS)])
    folded = load(_folded(load(attention(form)), found, select_partition(kept, HEADS * SIZE)))
    assert costs == [count_parameters(folded), count_macs(folded)]


@pytest.mark.parametrize("form", FORMS)
def test_a_fold_keeps_heads_and_cuts_inside_them(form: str) -> None:
    """Half of the values' dimensions go; what of them is not needed costs nothing."""
    random = np.random.default_rng(3)
    parts = [random.normal(size=(WIDTH, 1)) @ random.normal(size=(1, SIZE)) for _ in range(HEADS)]
    model = attention(form, values=np.concatenate(parts, axis=1).astype(np.float32))
    options = {"channel_ratio": 0.5, "inside_heads": True, "inputs": "noise", "samples": 64}
    result = quick_fold(model, method="fold-ls", **options)
    (group,) = result.report.groups
    assert (group.nodes, group.width, group.folded_width) == (("v",), HEADS * SIZE, HEADS * SIZE // 2)
    assert group.cluster == "rotation"
    assert relative_difference(run(model, _feeds()), run(result.model, _feeds())) < 1e-3
    for method in ("fold-ar", "prune-l2"):
        other = quick_fold(model, method=method, **options)
        assert [g.folded_width for g in other.report.groups] == [HEADS * SIZE // 2]


def test_it_goes_with_caches_that_stay_only() -> None:
    with pytest.raises(ConfigError, match="inside_heads keeps heads"):
        quick_fold(attention("decomposed"), 0.1, inside_heads=True, allow_cache_change=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("bert", [(32, 4)] * 2), ("gpt2", [(32, 4)] * 2), ("vit", [(32, 4)] * 3), ("t5", [(48, 6)] * 6),
        ("swin", [(24, 3)] * 2 + [(48, 6)] * 4), ("torch_attention", [(24, 3)] * 2), ("llama", []),
        ("llama_cached", []),
    ],
)  # fmt: skip
def test_exports_are_cut_inside_heads(name: str, blocks: list[tuple[int, int]], tmp_path: Path) -> None:
    """Shared heads that an export repeats stay as they are, and so does what a cache keeps."""
    case = language_case(name, "eager")
    path = case.export(tmp_path / "model.onnx", "legacy")
    feeds = [case.feeds(*lengths) for lengths in ((2, 7, 5), (3, 4, 0))]
    expected = [[found.shape for found in run(onnx.load(path), feed)] for feed in feeds]
    view = open_model(path, {}, silent).view
    found = _inside(view)
    heads = [group for group in found.groups if group.blocks is not None]
    assert [(group.size, group.block_count) for group in heads] == blocks
    assert all(group.is_there_to_rotate for group in heads)
    kept = [np.flatnonzero(np.arange(g.size) * g.block_count % g.size < g.size // 2) for g in heads]
    partitions = tuple(select_partition(k, g.size) for k, g in zip(kept, heads, strict=True))
    FoldChannels(FoldPlan(tuple(heads), partitions), tuple(found.counts), tuple(found.selects))(view)
    assert [[found.shape for found in run(to_model(view), feed)] for feed in feeds] == expected


def test_inspect_shows_what_a_fold_inside_heads_has() -> None:
    model = attention("MultiHeadAttention")
    folded = quick_fold(model, 0.2, inside_heads=True, verify=False).report.groups
    assert [(g.name, g.size) for g in onnxfold.inspect(model, inside_heads=True)] == [(g.name, g.width) for g in folded]
    assert {g.size for g in onnxfold.inspect(model, inside_heads=True)} == {HEADS * SIZE}
    assert {g.size for g in onnxfold.inspect(model)} == {HEADS}
    with pytest.raises(ConfigError, match="inside_heads keeps heads, and allow_cache_change lets them go"):
        onnxfold.inspect(model, inside_heads=True, allow_cache_change=True)
