"""Dead leaves: shapes, statistics of natural images."""

import warnings

import numpy as np
import pytest

from onnxfold.graph.files.load import load
from onnxfold.inputs.images.synthetic import dead_leaves, synthetic_inputs
from onnxfold.inputs.sample_kinds import EXPOSED, LEAVES
from testing.inputs import model_inputs
from testing.models import chain_conv


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 9), (8, 8), (5, 17), (32, 32)])
def test_dead_leaves_of_any_size(channels: int, height: int, width: int) -> None:
    images = dead_leaves(6, channels, height, width, seed=1)
    assert (images.shape, images.dtype) == ((6, channels, height, width), np.float32)
    np.testing.assert_allclose(images.mean(axis=(0, 2, 3)), 0.0, atol=1e-4)
    np.testing.assert_allclose(images.std(axis=(0, 2, 3)), 1.0, atol=1e-3)
    np.testing.assert_array_equal(images, dead_leaves(6, channels, height, width, seed=1))


def test_no_images_are_no_reason_to_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dead_leaves(0, 3, 8, 8, seed=0).shape == (0, 3, 8, 8)
        assert dead_leaves(2, 0, 8, 8, seed=0).shape == (2, 0, 8, 8)


def test_dead_leaves_have_the_spectrum_of_natural_images() -> None:
    """Their power falls like 1/f^2 up to a quarter of the sampling rate, and on beyond it."""
    images = dead_leaves(256, 1, 32, 32, seed=0)
    power = (np.abs(np.fft.fft2(images[:, 0])) ** 2).mean(0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(32), np.fft.fftfreq(32)))
    inner, outer = (frequency > 0.02) & (frequency < 0.25), (frequency >= 0.25) & (frequency < 0.5)
    slope, fine = (np.polyfit(np.log(frequency[part]), np.log(power[part]), 1)[0] for part in (inner, outer))
    assert -3.0 < slope < -2.0
    assert fine < -2.3  # hard edges: -2.0


def test_dead_leaves_have_colours_of_photographs() -> None:
    """The channels share most of their brightness, and no two images are alike."""
    images = dead_leaves(64, 3, 16, 16, seed=0)
    correlation = np.corrcoef(images.transpose(1, 0, 2, 3).reshape(3, -1))
    assert 0.7 < correlation.min() < 0.95
    assert len({image.tobytes() for image in images}) == 64


def test_the_number_of_pixels_painted_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (7, 3, 80, 65)
    expected = dead_leaves(*shape, seed=4)
    monkeypatch.setattr("onnxfold.inputs.images.synthetic._TOGETHER", 1)
    monkeypatch.setattr("onnxfold.inputs.images.synthetic._SMALL", -1)
    np.testing.assert_array_equal(dead_leaves(*shape, seed=4), expected)


@pytest.mark.parametrize(("side", "textured"), [(32, False), (128, True)])
def test_texture_stands_for_shapes_that_are_too_small_to_paint(
    side: int, textured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours inside a shape differ by more than the noise, in images whose smallest shapes are large."""
    images = dead_leaves(8, 3, side, side, seed=0)
    monkeypatch.setattr("onnxfold.inputs.images.synthetic._TEXTURE", 0.0)
    monkeypatch.setattr("onnxfold.inputs.images.synthetic._SMALL", -1)
    flat = dead_leaves(8, 3, side, side, seed=0)
    typical, least = (np.median(np.abs(np.diff(x, axis=-1))) for x in (images, flat))
    assert (typical > 1.3 * least) == textured


def test_grains_differ_by_shape_and_image() -> None:
    """Of large images, what is fine has other energies and other directions from image to image."""
    images = dead_leaves(16, 1, 128, 128, seed=0)[:, 0]
    across, along = (np.square(np.diff(images, axis=axis)).mean(axis=(1, 2)) for axis in (1, 2))
    assert np.log(np.square(np.diff(images, 2, axis=2)).mean(axis=(1, 2))).std() > 0.2
    assert np.abs(np.log(across / along)).max() > 0.2


def test_what_a_fit_is_shown_has_exposures_of_its_own() -> None:
    """Contrast and brightness vary by image; all images together have zero mean and unit deviation."""
    view = load(chain_conv(0))
    plain, exposed = (
        np.concatenate([b["x"] for b in synthetic_inputs(view, samples=256, kind=kind)]) for kind in (LEAVES, EXPOSED)
    )
    np.testing.assert_allclose(exposed.mean(axis=(0, 2, 3)), 0.0, atol=1e-4)
    np.testing.assert_allclose(exposed.std(axis=(0, 2, 3)), 1.0, atol=1e-3)
    of_plain, of_exposed = (np.log(x.std(axis=(1, 2, 3))).std() for x in (plain, exposed))
    assert of_exposed > of_plain + 0.05
    fitted = np.concatenate([b["x"] for b in model_inputs(view, LEAVES, samples=256).batches])
    np.testing.assert_array_equal(fitted, exposed)
