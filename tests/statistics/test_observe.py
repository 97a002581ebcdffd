"""What consumers see: second moments against a full run, matched normalisations."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxfold.channels import FoldGroup, find_groups
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from onnxfold.statistics import observe as observe_module
from onnxfold.statistics.moments import ChannelMoments
from onnxfold.statistics.observe import ConsumerMoments, FitRules, Observing, observe
from onnxfold.statistics.samples import stride_for, unit_samples
from testing.models import chain_conv, grouped_conv, mlp, random_input, residual, run
from testing.nodes_run import outputs_run
from testing.observing import observed

Array = NDArray[Any]


def _opened(model: onnx.ModelProto) -> tuple[GraphView, list[FoldGroup]]:
    view = load(model)
    return view, find_groups(view).groups


def _tensor(model: onnx.ModelProto, name: str, feeds: dict[str, Array]) -> Array:
    """Return any activation of a model."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    del exposed.graph.output[:]
    exposed.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return run(exposed, feeds)[0]


def _weights(model: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def _batches(feeds: dict[str, Array], count: int) -> list[dict[str, Array]]:
    return [{"x": part} for part in np.array_split(feeds["x"], count)]


def _covariance(values: Array) -> Array:
    flat = np.moveaxis(values, 1, -1).reshape(-1, values.shape[1]).astype(np.float64)
    return np.cov(flat.T, bias=True)


# -- moments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("bn", [True, False])
def test_covariance_and_gram_of_a_chain(bn: bool, batches: int) -> None:
    model = chain_conv(0, bn=bn)
    view, groups = _opened(model)
    feeds = random_input(model, 1, batch=24)
    found = observed(view, groups, _batches(feeds, batches)).moments
    weights = _weights(model)
    readers = {
        "conv_0": ("relu_0_out", weights["conv_1_w"].transpose(1, 0, 2, 3)),
        "conv_1": (None, weights["gemm_0_w"].T),
    }
    for group, (one,) in zip(groups, found, strict=True):
        tensor, columns = readers[group.name]
        if tensor is None:
            tensor = next(n.input[0] for n in model.graph.node if n.op_type == "Gemm")
        np.testing.assert_allclose(one.covariance, _covariance(_tensor(model, tensor, feeds)), rtol=1e-3, atol=1e-4)
        flat = columns.reshape(len(columns), -1).astype(np.float64)
        np.testing.assert_allclose(one.gram, flat @ flat.T, rtol=1e-4, atol=1e-4)


def test_trace_of_gram_and_covariance_is_the_output_energy() -> None:
    """Of a layer that reads one position at a time, trace(G C) is the variance of its output, summed."""
    model = mlp(0)
    view, groups = _opened(model)
    feeds = random_input(model, 1, batch=200)
    found = observed(view, groups, [feeds]).moments
    outputs = [n.output[0] for n in model.graph.node if n.op_type == "Gemm"][1:]
    for (one,), output in zip(found, outputs, strict=True):
        variance = float(_tensor(model, output, feeds).astype(np.float64).var(axis=0).sum())
        assert float((one.gram * one.covariance).sum()) == pytest.approx(variance, rel=1e-3)


def test_every_consumer_is_seen() -> None:
    """A stream is read by the branch, the next branch or projection, and the head."""
    model = residual(0)
    view, groups = _opened(model)
    found = observed(view, groups, [random_input(model, 1, batch=8)]).moments
    for group, moments in zip(groups, found, strict=True):
        uses = {use.node for m in group.members if m.role.name == "CONSUMER" for use in m.uses}
        assert len(moments) == len(uses) > 0
        assert all(m.covariance.shape == m.gram.shape == (group.size, group.size) for m in moments)
        assert all(np.allclose(m.covariance, m.covariance.T, atol=1e-5) for m in moments)
    assert max(len(m) for m in found) >= 3


def test_nothing_is_run_that_no_consumer_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a language model, the head takes most of the memory; what it writes tells nothing."""
    model = mlp(0)
    view, groups = _opened(model)
    layers = [node.output[0] for node in model.graph.node if node.op_type == "Gemm"]
    written = outputs_run(monkeypatch)
    observed(view, groups, [random_input(model, 1, batch=8)])
    assert set(layers) - set(written) == {layers[-1]}


def test_moments_that_are_taken_are_not_kept() -> None:
    """Each group's when its last consumer was met: of many wide layers there is no room for all."""
    model = residual(0)
    view, groups = _opened(model)
    feeds = random_input(model, 1, batch=8)
    taken: dict[int, list[ConsumerMoments]] = {}
    alive: list[int] = []
    kept: list[weakref.ref[ConsumerMoments]] = []

    sizes: list[int] = []

    def take(group: int, moments: list[ConsumerMoments]) -> None:
        assert group not in taken
        alive.append(sum(one() is not None for one in kept))
        kept.extend(map(weakref.ref, moments))
        taken[group] = [ConsumerMoments(m.covariance.copy(), m.gram.copy()) for m in moments]

    observe(view, groups, [feeds], take, Observing(make_room=sizes.append))
    assert set(sizes) == {group.size for group in groups}
    assert len(taken) == len(groups) > 2
    assert alive == [0] * len(groups)
    for i, expected in enumerate(observed(view, groups, [feeds]).moments):
        for one, other in zip(taken[i], expected, strict=True):
            np.testing.assert_array_equal(one.covariance, other.covariance)
            np.testing.assert_array_equal(one.gram, other.gram)


def test_grouped_convolutions() -> None:
    model = grouped_conv(0)
    view, groups = _opened(model)
    feeds = random_input(model, 1, batch=16)
    found = observed(view, groups, [feeds]).moments
    index = next(i for i, g in enumerate(groups) if g.block_count == 2)
    (one,) = found[index]
    np.testing.assert_allclose(one.covariance, _covariance(_tensor(model, "relu_0_out", feeds)), rtol=1e-3, atol=1e-4)


def test_more_positions_than_needed_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain_conv(0)
    view, groups = _opened(model)
    feeds = random_input(model, 1, batch=64)
    exact = observed(view, groups, [feeds]).moments[0][0].covariance
    monkeypatch.setattr(observe_module, "MAX_SAMPLES", 700)
    thinned = observed(view, groups, [feeds]).moments[0][0].covariance
    assert not np.array_equal(thinned, exact)
    np.testing.assert_allclose(thinned, exact, atol=0.3 * float(np.diag(exact).max()))


# -- matched normalisations ------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("build", [chain_conv, residual])
def test_matched_outputs_have_the_mean_beta_and_the_deviation_gamma(build: Any, scale: float) -> None:
    model = build(0)
    view, groups = _opened(model)
    feeds = {"x": scale * random_input(model, 1, batch=32)["x"] + np.float32(0.5)}
    seen = observed(view, groups, _batches(feeds, 2), Observing(FitRules(matches=True))).reference
    from onnxfold.graph.files.save import to_model

    matched = to_model(seen)
    weights = _weights(matched)
    norms = [n for n in matched.graph.node if n.op_type == "BatchNormalization"]
    assert norms
    for norm in norms:
        values = _tensor(matched, norm.output[0], feeds).astype(np.float64)
        gamma, beta = (weights[n].astype(np.float64) for n in norm.input[1:3])
        np.testing.assert_allclose(values.mean(axis=(0, 2, 3)), beta, atol=5e-3)
        np.testing.assert_allclose(values.std(axis=(0, 2, 3)), np.abs(gamma), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("match", [True, False])
def test_the_network_itself_stays(match: bool) -> None:
    model = chain_conv(0)
    view, groups = _opened(model)
    before = {n: view.weight(n).copy() for n in view.weights}
    observation = observed(view, groups, [random_input(model, 1, batch=16)], Observing(FitRules(matches=match)))
    assert all(np.array_equal(view.weight(n), v) for n, v in before.items())
    same = all(np.array_equal(observation.reference.weight(n), v) for n, v in before.items())
    assert same != match


def test_channels_that_are_dead_on_these_inputs_keep_their_statistics_in_proportion() -> None:
    model = mlp(0, bn=True)
    for tensor in model.graph.initializer:
        if tensor.name == "gemm_0_w":
            values = numpy_helper.to_array(tensor).copy()
            values[3] = 0.0
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    view, groups = _opened(model)
    feeds = {"x": 10.0 * random_input(model, 1, batch=64)["x"]}
    reference = observed(view, groups, [feeds], Observing(FitRules(matches=True))).reference
    own, ran = view.weight("bn_0_var").astype(np.float64), reference.weight("bn_0_var").astype(np.float64)
    others = np.delete(np.arange(12), 3)
    typical = np.median(ran[others] / own[others])
    assert typical > 10.0
    assert ran[3] / own[3] == pytest.approx(typical, rel=0.2)


# -- samples ---------------------------------------------------------------------------------------


def test_mean_and_variance_over_batches() -> None:
    random = np.random.default_rng(0)
    values = (1e-2 * random.standard_normal((40, 5, 3)) + 100.0).astype(np.float32)  # cancels in a naive sum
    found = ChannelMoments(np.array_split(values, 4), 1)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(found.mean, exact.mean(axis=(0, 2)), rtol=1e-6)
    np.testing.assert_allclose(found.variance, exact.var(axis=(0, 2)), rtol=1e-2)
    last = ChannelMoments([values], -1)
    np.testing.assert_allclose(last.mean, exact.mean(axis=(0, 1)), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 5, 4, 7), (2, 5, 11), (4, 5, 1, 1), (0, 5, 3, 3), (3, 5, 0)])
@pytest.mark.parametrize("stride", [1, 2, 9, 100])
@pytest.mark.parametrize("channels", [[0, 1, 2, 3, 4], [4, 1]])
def test_samples_of_images_are_those_of_any_array(shape: tuple[int, ...], stride: int, channels: list[int]) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    positions = np.array(channels)[:, None]
    seen = unit_samples(values, 1, positions, stride)
    np.testing.assert_array_equal(seen, unit_samples(np.moveaxis(values, 1, -1).copy(), -1, positions, stride))


@pytest.mark.parametrize("stride", [1, 3])
def test_samples_of_units(stride: int) -> None:
    """Unit u lies at positions[u]; every occurrence is a sample."""
    values = np.arange(2 * 6 * 4, dtype=np.float32).reshape(2, 6, 4)
    positions = np.array([[0, 3], [1, 4], [2, 5]])
    found = unit_samples(values, 1, positions, stride)
    flat = values.transpose(0, 2, 1).reshape(-1, 6)[::stride]
    expected = np.stack([part[:, positions[u]].reshape(-1) for part in [flat] for u in range(3)], axis=1)
    np.testing.assert_array_equal(np.sort(found, axis=0), np.sort(expected, axis=0))
    rows = {tuple(r) for r in found.tolist()}
    assert rows == {tuple(flat[s, positions[:, r]].tolist()) for s in range(len(flat)) for r in range(2)}


def test_stride_gives_about_as_many_samples_as_wanted() -> None:
    batches = [np.zeros((10, 4, 25), np.float32)] * 2
    assert stride_for(batches, 4, 10**6) == 1
    for wanted in (400, 100, 7):
        stride = stride_for(batches, 4, wanted)
        total = sum(len(unit_samples(b, 1, np.arange(4)[:, None], stride)) for b in batches)
        assert wanted / 2 <= total <= wanted + len(batches)
