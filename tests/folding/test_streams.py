"""Residual streams under norms are narrowed without loss where they have fewer dimensions than channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.budget.costs.weights import WeightCost, count_parameters
from onnxfold.channels import find_groups
from onnxfold.cluster.clusterings.rotation import rotations
from onnxfold.errors import NothingToFoldError
from onnxfold.folding.open_model import GraphForm, open_scopes, share_equal_weights
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.passes.merge.normalize_batch_norm import AbsorbNorms
from onnxfold.passes.normalize.pipelines import NORMALIZE
from testing.compare import relative_difference
from testing.genai_models import genai_decoder, genai_feeds
from testing.models import run
from testing.zoo.lengths import language_case
from tests.folding.test_tables import sentences

WORDS, WIDTH, HIDDEN, LAYERS = 40, 16, 24, 2
IDS = {"input_ids": np.random.default_rng(9).integers(0, WORDS, (3, 7))}
KINDS = ("LayerNormalization", "RMSNormalization")


def network(norm: str, *, basis: NDArray[Any] | None = None, tied: bool = False, post: bool = False) -> onnx.ModelProto:
    """Feed-forward layers on a stream, with norms that scale and shift; what is written lies in the span of a basis."""
    random = np.random.default_rng(0)
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, *shape: int, writes: bool = False) -> str:
        values = random.standard_normal(shape) / np.sqrt(shape[0])
        if writes and basis is not None:
            values = values @ basis @ np.linalg.pinv(basis)
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(op: str, inputs: list[str], out: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [out], out, **attributes))
        return out

    def normed(x: str, out: str) -> str:
        scale = numpy_helper.from_array(random.uniform(0.5, 1.5, WIDTH).astype(np.float32), f"{out}_scale")
        shift = numpy_helper.from_array(random.standard_normal(WIDTH).astype(np.float32), f"{out}_shift")
        weights.extend([scale, shift] if norm == "LayerNormalization" else [scale])
        names = [f"{out}_scale", f"{out}_shift"] if norm == "LayerNormalization" else [f"{out}_scale"]
        return node(norm, [x, *names], out, axis=-1, epsilon=1e-2)

    x = node("Gather", [weight("table", WORDS, WIDTH, writes=True), "input_ids"], "words")
    for i in range(LAYERS):
        read = normed(x, f"norm_{i}")
        active = node("Relu", [node("MatMul", [read, weight(f"up_{i}", WIDTH, HIDDEN)], f"up_proj_{i}")], f"active_{i}")
        down = node("MatMul", [active, weight(f"down_{i}", HIDDEN, WIDTH, writes=True)], f"down_proj_{i}")
        bias = weight(f"bias_{i}", 1, WIDTH, writes=True)
        x = node("Add", [read if post else x, node("Add", [down, bias], f"biased_{i}")], f"sum_{i}")
    last = normed(x, "last")
    if tied:
        flat = node("Reshape", [last, weight_of(weights, "flat", np.array([-1, WIDTH]))], "flat_last")
        node("Gemm", [flat, "table"], "y", transB=1)
    else:
        node("MatMul", [last, weight("head", WIDTH, WORDS)], "y")
    infos = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", infos, results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def weight_of(weights: list[onnx.TensorProto], name: str, values: NDArray[Any]) -> str:
    weights.append(numpy_helper.from_array(values, name))
    return name


def _sliced(model: onnx.ModelProto, width: int, name: str = "words") -> onnxfold.FoldResult:
    ratios = {name: 1.0 - width / WIDTH}
    return onnxfold.fold(model, 1e-6, ratios=ratios, method="slicegpt", verify=False, cache=None)


def _dims(model: onnx.ModelProto, name: str) -> tuple[int, ...]:
    return next(tuple(t.dims) for t in model.graph.initializer if t.name == name)


#: Channels 0 and 3 are equal, and channel 5 is always zero.
EQUAL = np.eye(WIDTH)[:, [i for i in range(WIDTH) if i not in (3, 5)]]
EQUAL[3, 0] = 1.0
ANY = np.linalg.qr(np.random.default_rng(1).standard_normal((WIDTH, 9)))[0]


@pytest.mark.parametrize("basis", [EQUAL, ANY], ids=["equal and zero channels", "any directions"])
@pytest.mark.parametrize("norm", KINDS)
def test_a_stream_of_few_dimensions_is_cut_to_them_at_no_loss(norm: str, basis: NDArray[Any]) -> None:
    """Behind a LayerNormalization, the vector of ones is one dimension more."""
    model = network(norm, basis=basis)
    width = basis.shape[1] + (norm == "LayerNormalization")
    result = _sliced(model, width)
    assert [(g.name, g.folded_width, g.cluster) for g in result.report.groups] == [
        ("words", width, "rotation"), ("up_proj_0", HIDDEN, ""), ("up_proj_1", HIDDEN, "")
    ]  # fmt: skip
    folded = result.model
    onnx.checker.check_model(folded, full_check=True)
    assert (_dims(folded, "table"), _dims(folded, "head")) == ((WORDS, width), (width, WORDS))
    assert [n.op_type for n in folded.graph.node] == [n.op_type for n in model.graph.node]
    assert relative_difference(run(model, IDS), run(folded, IDS)) <= 1e-5
    assert relative_difference(run(model, IDS), run(_sliced(model, width - 2).model, IDS)) > 1e-3


def test_the_stream_of_a_decoder_of_genai_is_cut() -> None:
    """Norms that add are on its way, and heads with caches beside it."""
    model = genai_decoder("packed")
    random = np.random.default_rng(2)
    basis = np.linalg.qr(random.standard_normal((32, 20)))[0]
    for tensor in model.graph.initializer:
        if tensor.name.startswith(("embedding", "o_", "down_")):
            values = numpy_helper.to_array(tensor) @ basis @ basis.T
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))
    feeds = genai_feeds(model, 1, 7, 5)
    result = onnxfold.fold(
        model, 1e-6, ratios={"node_words": 12 / 32}, method="slicegpt", verify=False, cache=None
    )  # fmt: skip
    assert _dims(result.model, "embedding")[1] == 20
    assert relative_difference(run(model, feeds), run(result.model, feeds)) <= 1e-4


@pytest.mark.parametrize("norm", KINDS)
def test_a_table_that_the_head_shares_stays_whole(norm: str) -> None:
    model = network(norm, basis=ANY, tied=True)
    width = 9 + (norm == "LayerNormalization")
    (scope,) = open_scopes(load(model), GraphForm(streams=True))
    groups = scope.analysis.groups
    stream = next(group for group in groups if group.norms)
    cost = WeightCost([(scope.analysed, groups)])
    result = _sliced(model, width, stream.name)
    assert _dims(result.model, "table") == (WORDS, WIDTH)
    assert relative_difference(run(model, IDS), run(result.model, IDS)) <= 1e-5
    assert cost([group.size for group in groups]) == count_parameters(load(model))
    assert count_parameters(load(result.model)) == cost([width if g is stream else g.size for g in groups])

    before = load(model)
    NORMALIZE(before)
    scope.with_seams(frozenset())  # what a fold does that leaves the stream alone
    assert [n.op_type for n in scope.view.nodes] == [n.op_type for n in before.nodes]


@pytest.mark.parametrize("norm", KINDS)
def test_scales_and_shifts_go_into_what_reads_them(norm: str) -> None:
    model = network(norm)
    (scope,) = open_scopes(load(model), GraphForm(streams=True))
    absorb = AbsorbNorms(tuple(scope.analysis.groups))
    assert absorb(scope.analysed).modified
    assert not absorb(scope.analysed).modified
    changed = to_model(scope.analysed)
    for tensor in changed.graph.initializer:
        if tensor.name.endswith(("_scale", "_shift")):
            np.testing.assert_array_equal(numpy_helper.to_array(tensor), 1.0)
    assert relative_difference(run(model, IDS), run(changed, IDS)) <= 1e-5


def test_streams_are_groups_where_they_are_asked_for_only() -> None:
    view = load(network("RMSNormalization"))
    NORMALIZE(view)
    assert [group.name for group in find_groups(view).groups] == ["up_proj_0", "up_proj_1"]
    assert [group.name for group in find_groups(view, streams=True).groups] == ["words", "up_proj_0", "up_proj_1"]


@pytest.mark.parametrize("model", [network("LayerNormalization", post=True), sentences()], ids=["post-norm", "encoder"])
def test_post_norm_streams_are_refused(model: onnx.ModelProto) -> None:
    with pytest.raises(NothingToFoldError, match=r"no residual stream that may be rotated.*post-norm"):
        onnxfold.fold(model, 0.1, method="slicegpt", verify=False, cache=None)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_mean_and_mean_square_are_those_of_the_channels(k: int, centred: bool) -> None:
    """Of what lies on the axes that are kept."""
    random = np.random.default_rng(0)
    samples = random.standard_normal((50, 7)) * np.arange(1, 8)
    found = rotations([(samples.T @ samples, np.eye(7))], normed=True, centred=centred).partition(k)
    np.testing.assert_allclose(found.encode @ found.decode, np.eye(k), atol=1e-12)
    kept = samples @ (found.decode @ found.encode).T
    reduced = samples @ found.encode.T
    np.testing.assert_allclose(np.square(reduced).mean(axis=1), np.square(kept).mean(axis=1), rtol=1e-10)
    if centred:
        np.testing.assert_allclose(reduced.mean(axis=1), samples.mean(axis=1), atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize(("name", "norms"), [("gpt2", [5]), ("whisper", [7]), ("clip", [5])])
def test_streams_of_exports_are_found_and_cut(name: str, norms: list[int], tmp_path: Path) -> None:
    """Shapes that are read on the way, tables of positions, cross-attention beside the stream."""
    case = language_case(name, "sdpa")
    path = case.export(tmp_path / "model.onnx", "legacy")
    view = load(path)
    share_equal_weights(view)  # as every fold does; the stream of a tied table has another name then
    (scope,) = open_scopes(view, GraphForm(streams=True))
    streams = [group for group in scope.analysis.groups if group.norms]
    assert [len(group.norms) for group in streams] == norms
    result = onnxfold.fold(
        path,
        channel_ratio=0.0,
        ratios={g.name: 0.5 for g in streams},
        method="slicegpt",
        cache=None,
        samples=16,
        verify=False,
    )
    assert [g.folded_width for g in result.report.groups if g.cluster] == [g.size // 2 for g in streams]
    feeds = case.feeds(2, 7, 5)
    assert [y.shape for y in run(result.model, feeds)] == [y.shape for y in run(onnx.load(path), feeds)]
