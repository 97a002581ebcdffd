"""The algebra of compensation, and the patches that convolutions read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxfold.channels.declarations import Window
from onnxfold.channels.layers import linear
from onnxfold.graph.files.load import load
from onnxfold.passes.repair.compensate import correction, decode_samples, read_patches, ridge_regression
from onnxfold.statistics.moments import CrossMoments
from testing.models import run

Array = NDArray[Any]


def _pair(seed: int, n: int = 7, k: int = 4, samples: int = 300) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    y = (random.standard_normal((samples, k)) @ random.standard_normal((k, k)) + 2.0).astype(np.float32)
    x = (y @ random.standard_normal((k, n)) + random.standard_normal((samples, n)) - 1.0).astype(np.float32)
    return x, y


def _solve(x: Array, y: Array, plain: Array, ridge: float, batches: int = 1) -> Array:
    residuals = CrossMoments(x.shape[1], y.shape[1])
    for a, b in zip(np.array_split(x, batches), np.array_split(y, batches), strict=True):
        residuals.add(a - decode_samples(b, plain), b)
    return plain + correction(residuals, ridge)


def _direct(x: Array, y: Array, plain: Array, strength: float) -> Array:
    """Return argmin of |xc - B yc|^2 / S + strength |B - U|^2 as one stacked least-squares problem."""
    xc, yc = (v.astype(np.float64) - v.astype(np.float64).mean(axis=0) for v in (x, y))
    weight = np.sqrt(strength * len(x))
    left = np.concatenate([yc, weight * np.eye(y.shape[1])])
    right = np.concatenate([xc, weight * plain.T])
    return np.linalg.lstsq(left, right, rcond=None)[0].T


# -- maps between channels -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ridge", [1e-3, 1e-1, 10.0])
def test_solution_of_the_moments(ridge: float, seed: int) -> None:
    x, y = _pair(seed)
    plain = np.random.default_rng(seed).standard_normal((7, 4))
    strength = ridge * float(y.astype(np.float64).var(axis=0).mean())
    expected = _direct(x, y, plain, strength)
    np.testing.assert_allclose(_solve(x, y, plain, ridge), expected, rtol=1e-3, atol=1e-4)


def test_batches_add_up() -> None:
    x, y = _pair(0)
    plain = np.zeros((7, 4))
    once, often = (_solve(x, y, plain, 1e-2, batches) for batches in (1, 7))
    np.testing.assert_allclose(once, often, rtol=1e-3, atol=1e-4)


def test_offsets_do_not_matter() -> None:
    x, y = _pair(0)
    plain = np.ones((7, 4))
    moved = _solve(x + np.float32(3.0), y - np.float32(5.0), plain, 1e-2)
    np.testing.assert_allclose(moved, _solve(x, y, plain, 1e-2), rtol=1e-3, atol=1e-3)


def test_the_plain_fold_stays_where_it_is_exact() -> None:
    """Merged duplicates: x = U x', whatever the ridge."""
    _, y = _pair(1)
    plain = np.eye(4)[[0, 1, 2, 3, 0, 1, 2]]
    for ridge in (1e-6, 1e-2, 1.0):
        np.testing.assert_array_equal(_solve(y[:, [0, 1, 2, 3, 0, 1, 2]], y, plain, ridge), plain)


def test_a_strong_ridge_returns_the_plain_fold() -> None:
    x, y = _pair(0)
    plain = np.random.default_rng(0).standard_normal((7, 4))
    np.testing.assert_allclose(_solve(x, y, plain, 1e9), plain, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1e4, np.nan, np.inf])
def test_samples_that_say_nothing_leave_the_plain_fold(value: float) -> None:
    x, y = np.full((50, 7), value, np.float32), np.full((50, 4), value, np.float32)
    plain = np.random.default_rng(0).standard_normal((7, 4))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(_solve(x, y, plain, 1e-2), plain)
    np.testing.assert_array_equal(correction(CrossMoments(7, 4), 1e-2), np.zeros((7, 4)))


# -- taps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [1e-2, 1.0])
@pytest.mark.parametrize(("samples", "width"), [(200, 12), (12, 200), (40, 41), (41, 40)])
def test_ridge_regression_in_both_forms(samples: int, width: int, ridge: float) -> None:
    """More patches than columns are solved in one form, fewer in the other: both are the minimum."""
    random = np.random.default_rng(samples)
    patches = (random.standard_normal((samples, width)) + 1.0).astype(np.float32)
    residual = (random.standard_normal((samples, 3)) - 2.0).astype(np.float32)
    centred = patches.astype(np.float64) - patches.astype(np.float64).mean(axis=0)
    expected = _direct(residual, patches, np.zeros((3, width)), ridge * float((centred**2).sum()) / width / samples)
    found = ridge_regression(patches.copy(), residual.copy(), ridge)
    assert found.shape == (3, width)
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-4)


def test_what_patches_explain_is_found() -> None:
    random = np.random.default_rng(0)
    patches = random.standard_normal((500, 9)).astype(np.float32)
    true = random.standard_normal((2, 9)).astype(np.float32)
    found = ridge_regression(patches.copy(), patches @ true.T + np.float32(4.0), 1e-6)
    np.testing.assert_allclose(found, true, atol=1e-3)


@pytest.mark.parametrize("value", [0.0, 3.0, np.nan])
def test_patches_that_say_nothing(value: float) -> None:
    patches, residual = np.full((50, 9), value, np.float32), np.ones((50, 2), np.float32)
    residual[::2] = -1.0
    np.testing.assert_array_equal(ridge_regression(patches, residual, 0.1), np.zeros((2, 9), np.float32))


# -- patches ---------------------------------------------------------------------------------------

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    # Shape of the input, of the weight, attributes.
    "plain": ((2, 3, 7, 6), (4, 3, 3, 3), {}),
    "one tap": ((2, 3, 7, 6), (4, 3, 1, 1), {}),
    "strides": ((2, 3, 9, 8), (4, 3, 3, 3), {"strides": [2, 3]}),
    "dilations": ((2, 3, 9, 8), (4, 3, 3, 2), {"dilations": [2, 3]}),
    "pads": ((2, 3, 5, 6), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    "unequal pads": ((2, 3, 5, 6), (4, 3, 3, 3), {"pads": [0, 2, 1, 1]}),
    "pads beyond the kernel": ((1, 2, 4, 4), (4, 2, 3, 3), {"pads": [4, 4, 4, 4]}),
    "all at once": (
        (2, 4, 9, 8),
        (6, 2, 3, 2),
        {"strides": [2, 1], "dilations": [1, 2], "pads": [2, 0, 1, 3], "group": 2},
    ),
    "groups": ((2, 6, 5, 5), (9, 2, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    "same, more behind": ((2, 3, 7, 8), (4, 3, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [1, 2]}),
    "same, more in front": (
        (2, 3, 9, 8),
        (4, 3, 4, 2),
        {"auto_pad": "SAME_LOWER", "strides": [2, 1]},
    ),
    "depthwise": ((2, 4, 5, 5), (8, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    "valid": ((2, 3, 7, 6), (4, 3, 3, 3), {"auto_pad": "VALID", "strides": [2, 2]}),
    "1-D": ((2, 3, 11), (4, 3, 4), {"strides": [2], "pads": [2, 1], "dilations": [2]}),
    "3-D": ((2, 2, 5, 6, 4), (4, 2, 2, 3, 2), {"strides": [1, 2, 1], "pads": [1, 0, 1, 0, 1, 1]}),
}


def _conv(x: Array, weight: Array, attributes: dict[str, Any]) -> onnx.ModelProto:
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * x.ndim)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _window(model: onnx.ModelProto) -> Window | None:
    view = load(model)
    operator = linear(view, view.nodes[0])
    assert operator is not None
    return operator.fixed_window


@pytest.mark.parametrize("case", CASES)
def test_patches_times_weight_is_the_convolution(case: str) -> None:
    x_shape, w_shape, attributes = CASES[case]
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    model = _conv(x, weight, attributes)
    y, window = run(model, {"x": x})[0], _window(model)
    assert window is not None
    assert window.taps == np.prod(w_shape[2:])
    count = len(y) * int(np.prod(y.shape[2:]))
    chosen = random.permutation(count)[: max(count // 2, 1)]
    sample, *places = np.unravel_index(chosen, (len(y), *y.shape[2:]))
    patches = read_patches(x, window, places, sample)
    assert patches.shape == (len(chosen), x_shape[1] * window.taps)
    assert patches.dtype == np.float32
    rows = np.split(weight.reshape(len(weight), -1), window.groups)
    parts = [p @ w.T for p, w in zip(np.split(patches, window.groups, axis=1), rows, strict=True)]
    index: Any = (sample, slice(None), *places)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), y[index], atol=1e-4)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_padding_that_depends_on_a_free_size_is_left_alone(mode: str) -> None:
    x, weight = np.zeros((1, 3, 5, 5), np.float32), np.ones((4, 3, 3, 3), np.float32)
    model = _conv(x, weight, {"auto_pad": mode, "strides": [2, 2]})
    window = _window(model)
    assert window is not None
    assert window.pads == (1, 1)
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "width"
    assert _window(model) is None
    del model.graph.node[0].attribute[1]  # of stride one, every size is padded alike
    window = _window(model)
    assert window is not None
    assert window.pads == (1, 1)


def test_positions_in_front_of_a_pooling_stand_in_for_images() -> None:
    random = np.random.default_rng(0)
    k, images, positions = 24, 8, 49
    true = random.standard_normal((1, k))

    def maps(count: int) -> tuple[Array, Array]:
        y = random.standard_normal((count, positions, k)) + random.standard_normal((count, 1, k))
        noise = 0.1 * random.standard_normal((count, positions, 1))
        return (y @ true.T + noise).astype(np.float32), y.astype(np.float32)

    (x, y), (new_x, new_y) = maps(images), maps(400)
    pooled, unpooled = (CrossMoments(1, k) for _ in range(2))
    pooled.add(x.mean(axis=1), y.mean(axis=1))
    unpooled.add(x.reshape(-1, 1), y.reshape(-1, k))

    def error(fitted: Array) -> float:
        left = new_x.mean(axis=1) - new_y.mean(axis=1) @ fitted.T
        return float(np.square(left - left.mean()).mean())

    alone = error(correction(pooled, 1e-2))
    helped = error(correction(pooled, 1e-2, unpooled=(unpooled.covariance, unpooled.gram)))
    assert helped < 0.5 * alone, "eight images say little of 24 channels, their positions do"
