"""Least-squares repair on whole networks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxfold.channels import find_groups
from onnxfold.cluster.partition import select_partition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.folding.methods import METHODS
from onnxfold.folding.one_graph import find_candidates, fold_graph
from onnxfold.folding.open_model import open_model
from onnxfold.folding.prepare import prepare
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.passes.merge.fold_channels import FoldChannels
from onnxfold.passes.repair import compensate
from onnxfold.passes.repair.repair_least_squares import RepairLeastSquares
from onnxfold.progress import silent
from onnxfold.statistics.moments import Doubt
from onnxfold.statistics.observe import FitRules, Observing
from testing.graph_builder import GraphBuilder
from testing.models import mlp, random_input, run
from testing.nodes_run import outputs_run
from testing.observing import observed
from testing.quick import quick_fold

Array = NDArray[Any]


def _error(model: onnx.ModelProto, folded: onnx.ModelProto, feeds: dict[str, Array]) -> float:
    before, after = run(model, feeds)[0], run(folded, feeds)[0]
    return float(np.linalg.norm(after - before) / np.linalg.norm(before))


# -- networks with fewer dimensions than channels ----------------------------------------------------


def _linear(seed: int) -> onnx.ModelProto:
    """Twenty channels that are combinations of seven inputs."""
    g = GraphBuilder("linear", seed, (7,))
    y = g.gemm(g.gemm("x", 20), 5)
    g.output(y)
    return g.build()


def _scaled_copies(seed: int) -> onnx.ModelProto:
    """Sixteen channels that are four, in different sizes: a ReLU keeps positive factors."""
    model = mlp(seed, widths=(16,))
    factors = np.random.default_rng(seed).uniform(0.5, 2.0, 16).astype(np.float32)
    for tensor in model.graph.initializer:
        if tensor.name in ("gemm_0_w", "gemm_0_b"):
            values = numpy_helper.to_array(tensor)[np.arange(16) % 4]
            scaled = (values.T * factors).T
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(scaled), tensor.name))
    return model


@pytest.mark.parametrize("seed", range(3))
def test_exact_where_the_channels_left_determine_the_others(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pull towards the plain fold, which costs less than a hundredth."""
    model = _linear(seed)
    feeds = random_input(model, 99, batch=200)
    plain = quick_fold(model, channel_ratio=0.5, samples=256, repair="none", cluster="elimination")
    assert _error(model, plain.model, feeds) > 0.05  # it is the repair that makes it exact
    assert _error(model, quick_fold(model, channel_ratio=0.5, samples=256).model, feeds) < 0.02
    monkeypatch.setattr(compensate, "RIDGE", 1e-5)
    assert _error(model, quick_fold(model, channel_ratio=0.5, samples=256).model, feeds) < 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_dropped_copies_of_another_size_are_made_up_for(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One channel of each kind is kept: behind a ReLU the others are its multiples."""
    monkeypatch.setattr(compensate, "RIDGE", 1e-5)
    model = _scaled_copies(seed)
    view = load(model)
    analysis = find_groups(view)
    original = view.copy()
    plan = FoldPlan(tuple(analysis.groups), (select_partition([4, 1, 10, 15], 16),))
    FoldChannels(plan, tuple(analysis.counts), tuple(analysis.selects))(view)
    dropped = _error(model, to_model(view), random_input(model, 99, batch=200))
    observation = observed(original, (), [random_input(model, 1, batch=256)])
    RepairLeastSquares(original, plan, observation)(view)
    repaired = _error(model, to_model(view), random_input(model, 99, batch=200))
    assert repaired < 1e-3 < 0.1 < dropped


def test_the_head_is_repaired_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair looks at what it reads; of a language model, its scores take more memory than all the rest."""
    g = GraphBuilder("scores", 0, (16,))
    head = g.constant("head", g.normal(24, 100))
    g.output(g.node("MatMul", [g.relu(g.gemm("x", 24)), head], (100,)))
    model = g.build()
    view = load(model)
    analysis = find_groups(view)
    original = view.copy()
    plan = FoldPlan(tuple(analysis.groups), (select_partition(range(12), 24),))
    FoldChannels(plan, tuple(analysis.counts), tuple(analysis.selects))(view)
    observation = observed(original, (), [random_input(model, 1, batch=256)])
    before, written = view.weight(head).copy(), outputs_run(monkeypatch)
    RepairLeastSquares(original, plan, observation)(view)
    scores = next(node.output[0] for node in view.nodes if node.op_type == "MatMul")
    assert written
    assert scores not in written
    assert np.abs(view.weight(head) - before).max() > 0.01


def _normalised_fold() -> tuple[GraphView, GraphView, FoldPlan, dict[str, Array]]:
    """Return a network with BatchNormalization, its fold to 2 of 32 channels, the plan, and a batch of inputs."""
    g = GraphBuilder("normalised", 0, (8, 6, 6))
    g.output(g.batch_norm(g.conv(g.relu(g.conv("x", 32)), 12)))
    model = g.build()
    view = load(model)
    analysis = find_groups(view)
    original = view.copy()
    group = next(group for group in analysis.groups if group.size == 32)
    plan = FoldPlan((group,), (select_partition([3, 17], 32),))
    FoldChannels(plan, tuple(analysis.counts), tuple(analysis.selects))(view)
    return original, view, plan, random_input(model, 1, batch=64)


@pytest.mark.parametrize("doubt", [0.0, 0.7])
def test_a_normalised_channel_that_is_hardly_known_is_no_loud_noise(doubt: float) -> None:
    """Where a fold leaves of a channel what correlates with it by r, doubtful inputs give it r^doubt of its deviation.

    With the whole deviation its error is 2 - 2 r of its variance, the larger the less is known.
    """
    original, view, plan, feeds = _normalised_fold()
    RepairLeastSquares(original, plan, observed(original, (), [feeds], Observing(FitRules(doubt=Doubt(doubt)))))(view)
    outputs = (run(m, feeds)[0] for m in (to_model(original), to_model(view)))
    before, after = (np.moveaxis(y, 1, 0).reshape(12, -1) for y in outputs)
    known = np.array([np.corrcoef(pair)[0, 1] for pair in zip(before, after, strict=True)])
    assert known.min() < 0.5  # there is something to tell apart
    gain = known**doubt
    lost = np.square(after - before).mean(axis=1) / before.var(axis=1)
    np.testing.assert_allclose(lost, 1.0 - 2.0 * gain * known + gain**2, atol=0.01)


def test_statistics_move_as_far_as_a_channel_follows_its_members() -> None:
    """Data has other statistics than the inputs; what correlates with the original by r has r^2 of the difference."""
    original, view, plan, feeds = _normalised_fold()
    RepairLeastSquares(original, plan, observed(original, (), [feeds], Observing(FitRules(matches=True))))(view)
    stored, own, read = [], [], []
    for network in (original, view):
        norm = next(node for node in network.nodes if node.op_type == "BatchNormalization")
        (stored if network is view else own).extend(network.weight(name) for name in norm.input[3:])
        network.model.graph.output.append(onnx.helper.make_empty_tensor_value_info(norm.input[0]))
        read.append(np.moveaxis(run(to_model(network), feeds)[1], 1, 0).reshape(12, -1))
    covariances = np.array([np.cov(pair, bias=True) for pair in zip(*read, strict=True)])
    of_both, slopes = covariances[:, 1, 1], covariances[:, 0, 1] / covariances[:, 0, 0]
    known = slopes**2 * covariances[:, 0, 0] / of_both
    assert known.min() < 0.3  # there is something to tell apart
    ratio = own[1] / covariances[:, 0, 0]
    assert np.abs(np.log(ratio)).max() > 0.5
    np.testing.assert_allclose(stored[1], of_both * (1.0 + known * (ratio - 1.0)), rtol=1e-3)
    moved = read[1].mean(axis=1) + slopes * (own[0] - read[0].mean(axis=1))
    np.testing.assert_allclose(stored[0], moved, atol=1e-3)


# -- against repair from the weights alone -----------------------------------------------------------

ZOO = ("mlp_bn", "squeeze_excite", "resnet18", "autoencoder")


@cache
def _trained_like(name: str, seed: int) -> onnx.ModelProto:
    pytest.importorskip("torch")
    from testing.zoo import export as zoo_export
    from testing.zoo import scalable

    nets = {
        "mlp_bn": lambda: scalable.mlp_bn(),
        "squeeze_excite": lambda: scalable.squeeze_excite_net(width=8, input_size=8),
        "resnet18": lambda: scalable.resnet18(width=4, input_size=8),
        "autoencoder": lambda: scalable.autoencoder(width=8, input_size=8),
    }
    net = scalable.seeded(nets[name](), seed)
    with TemporaryDirectory() as folder:
        path = zoo_export.export(net, scalable.example_input(net), Path(folder) / "m.onnx", "legacy-bn")
        return onnx.load(path)


@pytest.mark.parametrize("name", ZOO)
def test_closer_than_from_the_weights_alone(name: str) -> None:
    """On inputs that were not seen, of two seeds together; of the deepest one, one."""
    error = dict.fromkeys(("fold-ls", "fold-ar"), 0.0)
    for seed in (0,) if name == "resnet18" else (0, 1):
        model = _trained_like(name, seed)
        feeds = random_input(model, 99, batch=64)
        for method in error:
            options = {"method": method, "inputs": "noise", "samples": 128}
            folded = quick_fold(model, channel_ratio=0.4, verify=False, **options).model
            error[method] += _error(model, folded, feeds)
    assert error["fold-ls"] < error["fold-ar"]


# -- matched BatchNormalization ----------------------------------------------------------------------


def _folded_on(model: onnx.ModelProto, x: Array, kind: str) -> onnx.ModelProto:
    """Fold to half the channels, having run on x, taken for data or not."""
    opened = open_model(model, {}, silent)
    inputs = ModelInputs([{"x": part} for part in np.array_split(x, 4)], kind, "")
    (graph,) = prepare(opened, METHODS["fold-ls"], inputs, 0).graphs
    graph = replace(graph, candidates=find_candidates(graph))
    fold_graph(graph, [g.size // 2 for g in graph.groups])
    return to_model(opened.view)


def _standardised(model: onnx.ModelProto, x: Array) -> onnx.ModelProto:
    """Give a network of Gemm and BatchNormalization the statistics of x."""
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    h = x
    values: dict[str, Array] = {}
    for i in (0, 1):
        h = h @ weights[f"gemm_{i}_w"].T + weights[f"gemm_{i}_b"]
        values[f"bn_{i}_mean"], values[f"bn_{i}_var"] = h.mean(axis=0), h.var(axis=0)
        h = (h - h.mean(axis=0)) / np.sqrt(h.var(axis=0) + 1e-5)
        h = np.maximum(h * weights[f"bn_{i}_gamma"] + weights[f"bn_{i}_beta"], 0.0)
    for tensor in model.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(numpy_helper.from_array(values[tensor.name].astype(np.float32), tensor.name))
    return model


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("scale", "offset"), [(3.0, 0.0), (1.0, 1.0), (3.0, 1.0)])
def test_scale_and_offset_of_generated_inputs_do_not_matter(scale: float, offset: float, seed: int) -> None:
    """What a normalisation sees is matched; data is taken as it is."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((512, 7)).astype(np.float32)
    model = _standardised(mlp(seed, widths=(16, 12), bn=True), x)
    moved = (scale * x + offset).astype(np.float32)
    feeds = {"x": random.standard_normal((256, 7)).astype(np.float32)}
    difference = {}
    for kind in ("noise", "data"):
        a, b = (run(_folded_on(model, part, kind), feeds)[0] for part in (x, moved))
        difference[kind] = float(np.linalg.norm(a - b) / np.linalg.norm(a))
    assert difference["noise"] < 0.01
    assert difference["data"] > 0.05  # were the inputs data, they would say that the network is used differently


@pytest.mark.parametrize("seed", range(3))
def test_matching_inputs_that_are_like_data_changes_little(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((512, 7)).astype(np.float32)
    model = _standardised(mlp(seed, widths=(16, 12), bn=True), x)
    feeds = random_input(model, 9, batch=256)
    a, b = (run(_folded_on(model, x, kind), feeds)[0] for kind in ("noise", "data"))
    assert np.linalg.norm(a - b) < 0.01 * np.linalg.norm(a)


# -- bookkeeping -------------------------------------------------------------------------------------


def test_the_reference_is_left_as_it_was() -> None:
    model = mlp(0, widths=(16, 12), bn=True)
    before = model.SerializeToString()
    quick_fold(model, channel_ratio=0.5)
    assert model.SerializeToString() == before


def test_the_same_seed_gives_the_same_weights() -> None:
    model = mlp(0, widths=(16, 12), bn=True)
    a, b, c = (quick_fold(model, channel_ratio=0.5, seed=seed).model for seed in (0, 0, 1))

    def weights(m: onnx.ModelProto) -> list[bytes]:
        return [t.raw_data for t in m.graph.initializer]

    assert weights(a) == weights(b) != weights(c)


def test_statistics_behind_a_product_from_the_left_are_restored() -> None:
    """The rows of W in W x lie on the last axis but one of the result, and so does the bias that is added behind."""
    g = GraphBuilder("left", 0, (4, 6))
    w1, w2 = (g.constant(n, g.normal(*s, std=0.5)) for n, s in (("w1", (12, 4)), ("w2", (5, 12))))
    h = g.node("MatMul", [w1, "x"], (12, 6))
    h = g.relu(g.node("Add", [h, g.constant("b1", g.normal(12, 1, std=0.3))], (12, 6)))
    g.output(g.node("MatMul", [w2, h], (5, 6)))
    x = {"x": np.random.default_rng(1).standard_normal((64, 4, 6)).astype(np.float32)}
    rows = []
    for repair in ("none", "least-squares"):
        result = quick_fold(g.build(), channel_ratio=0.5, cluster="kmeans", repair=repair, calibration=x)
        weights = {t.name: numpy_helper.to_array(t) for t in result.model.graph.initializer}
        assert weights["w1"].shape == (6, 4)
        rows.append(np.linalg.norm(weights["w1"], axis=1))
    assert (rows[1] >= rows[0] * (1 - 1e-3)).all()
    assert (rows[1] > rows[0] * 1.01).any()  # what averaging took


def test_an_isolated_repair_sees_its_group_as_if_nothing_else_was_folded() -> None:
    """Two branches in a row: what reads the second one becomes what it becomes where the first one is whole."""
    g = GraphBuilder("branches", 0, (12,))
    stream = g.add("x", g.gemm(g.relu(g.gemm("x", 16)), 12))
    g.output(g.add(stream, g.gemm(g.relu(g.gemm(stream, 16)), 12)))
    model = g.build()
    view = load(model)
    groups = find_groups(view).groups

    def folded(*which: int, continues_text: bool) -> dict[str, Array]:
        seen = observed(
            view,
            groups,
            [random_input(model, 1, batch=64)],
            Observing(FitRules(by_length=continues_text)),
        )
        chosen = tuple(groups[i] for i in which)
        plan = FoldPlan(chosen, tuple(select_partition(np.arange(0, group.size, 2), group.size) for group in chosen))
        result = view.copy()
        FoldChannels(plan, ())(result)
        RepairLeastSquares(view, plan, seen)(result)
        return {m.axis.tensor: result.weight(m.axis.tensor) for m in groups[1].members}

    alone = folded(1, continues_text=True)
    assert all(np.array_equal(values, alone[name]) for name, values in folded(0, 1, continues_text=True).items())
    assert not all(np.array_equal(values, alone[name]) for name, values in folded(0, 1, continues_text=False).items())


def test_a_consumer_without_a_bias_gives_the_mean_of_what_was_dropped() -> None:
    """Half of the channels are dropped that a MatMul reads behind a ReLU, where every channel has a mean."""
    g = GraphBuilder("no bias", 0, (5, 12))
    g.output(g.node("MatMul", [g.relu(g.matmul_add("x", 24)), g.constant("w", g.normal(24, 6))], (5, 6)))
    model = g.build()
    x = random_input(model, 1, batch=256)
    result = quick_fold(model, channel_ratio=0.5, method="fold-ls", calibration=x, verify=False)
    held_out = random_input(model, 2, batch=256)
    before, after = run(model, held_out)[0], run(result.model, held_out)[0]
    lost = np.abs((after - before).mean(axis=(0, 1))).max()
    assert lost < 0.1 * np.abs(before.mean(axis=(0, 1))).max()


def test_the_bias_behind_the_last_consumer_is_restored() -> None:
    """It is an Add of its own, and nothing is merged behind it."""
    g = GraphBuilder("bias behind", 0, (5, 12))
    g.output(g.matmul_add(g.relu(g.matmul_add("x", 24)), 6))
    model = g.build()
    result = quick_fold(model, channel_ratio=0.5, calibration=random_input(model, 1, batch=256), verify=False)
    held_out = random_input(model, 2, batch=256)
    before, after = run(model, held_out)[0], run(result.model, held_out)[0]
    lost = np.abs((after - before).mean(axis=(0, 1))).max()
    assert lost < 0.1 * np.abs(before.mean(axis=(0, 1))).max()


def test_energies_stay_energies() -> None:
    """Refitted bands of a spectrum were negative in five recordings of 512, whose logarithm is NaN."""
    g = GraphBuilder("spectrum", 3, (24,))
    h = g.gemm("x", 40)
    bands = g.constant("bands", np.maximum(np.random.default_rng(0).normal(size=(40, 12)), 0).astype(np.float32))
    energies = g.node("MatMul", [g.mul(h, h), bands], (12,))
    g.output(g.gemm(g.unary("Log", energies), 5))
    result = quick_fold(g.build(), 0.5, samples=64)
    assert result.report.sparsity > 0.3
    folded = next(numpy_helper.to_array(t) for t in result.model.graph.initializer if t.name == "bands")
    assert folded.shape[0] < 40
    assert folded.min() >= 0.0
