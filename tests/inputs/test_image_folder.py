"""Folders of images as inputs: which files, how pixels become inputs, what is refused and left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

import onnxfold
from onnxfold.config.pixels import PixelScale, pixel_scale
from onnxfold.errors import ConfigError, MemoryLimitError, OptionTypeError
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import InputInfo
from onnxfold.html_report.command_line import command_line
from onnxfold.inputs import given_samples, input_plan
from onnxfold.inputs.given_inputs import UserSamples
from onnxfold.inputs.given_samples import read_images
from onnxfold.machine import memory
from testing.inputs import model_inputs
from testing.models import chain_conv
from tests.command_line import onnxfold as command

BYTES = PixelScale((0.0,), (1.0,), 255.0)


def _info(*shape: int | None, dtype: Any = np.float32) -> list[InputInfo]:
    return [InputInfo("x", np.dtype(dtype), shape)]


def _save(path: Path, pixels: Any, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path, **options)


def _noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, shape)


def _read(folder: Path, infos: list[InputInfo], scale: PixelScale | None = BYTES, most: int = 512) -> UserSamples:
    return read_images(folder, infos, scale, most)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images of 6 x 8 pixels, one in a folder below, and files that are no images."""
    _save(tmp_path / "photos" / "b" / "1.png", _noise(6, 8, 3, seed=1))
    _save(tmp_path / "photos" / "a.PNG", _noise(6, 8, 3, seed=2))
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    (tmp_path / "photos" / ".hidden.png").write_bytes(b"")
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("mean", "std", "largest"),
    [
        ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 1.0), (127.5, 127.5, 255.0), (127, 128, 255.0), (0, 255, 255.0),
        (0.5, 0.5, 1.0), (0.5, 1, 1.0), (0, 0.5, 1.0), ([104, 117, 123], 1, 255.0), (0, 1 / 255, 1.0),
    ],
)  # fmt: skip
def test_the_units_follow_from_the_numbers(mean: Any, std: Any, largest: float) -> None:
    scale = pixel_scale(mean, std)
    assert scale is not None
    assert scale.largest == largest


@pytest.mark.parametrize(
    ("mean", "std", "says"),
    [
        (0, 1, "do not say whether pixels go to 1 or to 255"), (0.5, 127.5, "different units"),
        (127.5, 0.5, "different units"), ([0.485, 104, 0.4], 0.2, "different units"), (0.5, None, "belong together"),
        (None, 0.5, "belong together"), (0.5, 0, "must be above 0"), (-1, 1, "must be at least 0"),
        (300, 58, "at most 255"), ([], 1, "has 0 numbers"), ([0.1] * 5, 1, "has 5 numbers"),
        (float("nan"), 0.5, "must be at least 0"),
    ],
)  # fmt: skip
def test_what_could_mean_two_things_is_refused(mean: Any, std: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        pixel_scale(mean, std)


def test_numbers_only() -> None:
    with pytest.raises(OptionTypeError, match="is not a number"):
        pixel_scale("0.5", 0.5)


def test_images_are_sorted_scaled_and_laid_out_as_the_input(folder: Path) -> None:
    raw = np.stack([_noise(6, 8, 3, seed=2), _noise(6, 8, 3, seed=1)])
    scale = pixel_scale((0.1, 0.2, 0.3), (0.5, 0.25, 0.125))
    expected = (raw / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.25, 0.125]
    last = _read(folder, _info(None, 6, 8, 3), scale)
    np.testing.assert_allclose(last.arrays["x"], expected, rtol=1e-5, atol=1e-6)
    front = _read(folder, _info(None, 3, 6, 8), scale)
    np.testing.assert_array_equal(front.arrays["x"], last.arrays["x"].transpose(0, 3, 1, 2))
    assert front.arrays["x"].dtype == np.float32
    assert front.reason.startswith("2 of 2 images of")
    assert "mean 0.1, 0.2, 0.3, std 0.5, 0.25, 0.125 of pixels from 0 to 1" in front.reason


def test_a_network_of_opencv_gets_blue_first(folder: Path) -> None:
    """Mean and std are in the order that the network takes."""
    rgb = pixel_scale((0.1, 0.2, 0.3), 0.5)
    bgr = pixel_scale((0.3, 0.2, 0.1), 0.5, "bgr")
    a, b = (_read(folder, _info(None, 3, 6, 8), scale) for scale in (rgb, bgr))
    np.testing.assert_array_equal(b.arrays["x"], a.arrays["x"][:, ::-1])
    assert "of BGR pixels from 0 to 1" in b.reason
    raw = _read(folder, _info(None, 6, 8, 3, dtype=np.uint8), pixel_scale(None, None, "bgr"))
    np.testing.assert_array_equal(raw.arrays["x"][1], _noise(6, 8, 3, seed=1)[:, :, ::-1])
    assert raw.reason.endswith("BGR pixels as they are")
    with pytest.raises(ConfigError, match="one channel, which has no order"):
        _read(folder, _info(None, 1, 6, 8), pixel_scale(0.5, 0.5, "bgr"))
    with pytest.raises(ConfigError, match="needs mean and std"):
        _read(folder, _info(None, 3, 6, 8), pixel_scale(None, None, "bgr"))
    with pytest.raises(ConfigError, match="channels 'brg' is unknown"):
        pixel_scale(0.5, 0.5, "brg")


def test_both_units_give_the_same_inputs(folder: Path) -> None:
    one, other = pixel_scale(0.5, 0.25), pixel_scale(127.5, 63.75)
    a, b = (_read(folder, _info(None, 3, 6, 8), scale).arrays["x"] for scale in (one, other))
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_network_of_one_channel_sees_grey_and_one_of_bytes_sees_pixels(folder: Path) -> None:
    grey = _read(folder, _info(None, 1, 6, 8)).arrays["x"]
    expected = [np.asarray(Image.open(path).convert("L")) for path in (folder / "a.PNG", folder / "b" / "1.png")]
    np.testing.assert_array_equal(grey[:, 0], expected)
    raw = _read(folder, _info(None, 6, 8, 3, dtype=np.uint8), None).arrays["x"]
    assert raw.dtype == np.uint8
    np.testing.assert_array_equal(raw[1], _noise(6, 8, 3, seed=1))


def test_the_centre_is_taken_as_the_usual_evaluation_does(tmp_path: Path) -> None:
    """Resize the short side to 8/7 of the input, bicubic, and crop: the same but for rounding."""
    ramp = np.add.outer(np.arange(160), np.arange(240))[..., None] * [0.5, 0.6, 0.3]
    _save(tmp_path / "x.png", ramp)
    got = _read(tmp_path, _info(None, 3, 56, 56)).arrays["x"][0].transpose(1, 2, 0)
    whole = Image.open(tmp_path / "x.png").resize((96, 64), Image.Resampling.BICUBIC)
    usual = np.asarray(whole)[4:60, 20:76].astype(float)
    assert np.abs(got - usual).max() <= 1.5


def test_images_are_taken_at_equal_distances(tmp_path: Path) -> None:
    for i in range(10):
        _save(tmp_path / f"{i}.png", np.full((4, 4), i))
    found = _read(tmp_path, _info(None, 1, 4, 4), most=3)
    assert found.arrays["x"][:, 0, 0, 0].tolist() == [0.0, 3.0, 6.0]
    fixed = _read(tmp_path, _info(4, 1, 4, 4))
    assert len(fixed.arrays["x"]) == 8
    few = read_images(tmp_path, _info(None, 1, 4, 4), BYTES, 12, 12)
    assert few.notes == (f"12 samples were requested; '{tmp_path}' holds 10 images",)


def test_what_cannot_be_read_is_left_out_with_one_line(folder: Path) -> None:
    (folder / "c.jpg").write_bytes(b"nothing of an image")
    good = (folder / "a.PNG").read_bytes()
    (folder / "d.png").write_bytes(good[: len(good) // 2])
    found = _read(folder, _info(None, 3, 6, 8))
    assert len(found.arrays["x"]) == 2
    (note,) = found.notes
    assert note == (
        f"2 of 4 images of '{folder}' cannot be read and are left out; the first is 'c.jpg': neither a JPEG nor a PNG "
        "file"
    )


def test_sixteen_bits_and_giants_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(_noise(4, 4).astype(np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ConfigError, match=r"the first is 'deep\.png': 16 bits"):
        _read(tmp_path, _info(None, 1, 4, 4))
    (tmp_path / "deep.png").unlink()
    _save(tmp_path / "giant.png", np.zeros((400, 400)))
    monkeypatch.setattr(Image.Image, "convert", None)  # nothing is decoded
    with memory.memory_limit(1 << 20), pytest.raises(ConfigError, match=r"'giant.png': decoding it needs 1\.2 MiB"):
        _read(tmp_path, _info(None, 1, 4, 4))


def test_memory_is_counted_before_it_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_samples, "_centre", None)
    with memory.memory_limit(1 << 20), pytest.raises(MemoryLimitError, match="fewer --samples"):
        _read(folder, _info(None, 3, 400, 400))


@pytest.mark.parametrize(
    ("infos", "scale", "says"),
    [
        (_info(None, 3, 6, 8), None, "needs mean and std of the pixels in training"),
        (_info(None, 3, 6, 8), PixelScale((1.0, 2.0), (3.0,), 255.0), "mean has 2 numbers, and the images have 3"),
        (_info(None, 3, None, 8), BYTES, "has no fixed size to bring images to: give --input-shapes"),
        (_info(None, 5, 6, 8), BYTES, r"shape \[any, 5, 6, 8\] is no image of 1 or 3 channels"),
        (_info(None, 3, 6, 3), BYTES, "is no image of 1 or 3 channels, in front or last"),
        (_info(None, 3, 6), BYTES, "one input of rank 4"),
        (_info(None, 3, 6, 8, dtype=np.int64), BYTES, "of the type int64"),
        (_info(None, 3, 6, 8, dtype=np.uint8), BYTES, "takes pixels as they are: leave out mean and std"),
    ],
)
def test_inputs_that_are_no_images_are_refused(
    folder: Path, infos: list[InputInfo], scale: PixelScale | None, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        _read(folder, infos, scale)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no \.jpg, \.jpeg, \.png files"):
        _read(tmp_path, _info(None, 3, 6, 8))


def test_without_pillow_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_samples, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs Pillow, which is not installed: pip install pillow"):
        _read(folder, _info(None, 3, 6, 8))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "in.onnx"
    onnx.save(chain_conv(0), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for i in range(12):
        _save(folder / str(i % 3) / f"{i}.jpg", _noise(20, 24, 3, seed=i))
    return folder


def test_fold_and_compare_read_the_same_folder(model: Path, photos: Path, tmp_path: Path) -> None:
    pixels = ["--mean", "0.5,0.4,0.5", "--std", "0.25"]
    options = ["--calibration", photos, *pixels, "--samples", "8", "--no-verify", "--report", tmp_path / "r.json"]
    done = command("fold", model, tmp_path / "out.onnx", "--sparsity", "0.3", *options)
    assert done.returncode == 0, done.stderr
    assert f"run on 8 samples of data: 8 of 12 images of '{photos}', mean 0.5, 0.4, 0.5, std 0.25" in _line(done.stdout)
    compared = command("compare", model, tmp_path / "out.onnx", "--data", photos, *pixels)
    assert compared.returncode == 0, compared.stderr
    assert "12 samples of 12 of 12 images" in _line(compared.stdout)
    assert "--channels" not in command_line(onnxfold.fold(model, 0.3, calibration=photos, mean=0, std=255).report)
    again = onnxfold.fold(
        model, 0.3, calibration=photos, mean=(0.5, 0.4, 0.5), std=0.25, channels="bgr", samples=8, verify=False
    )
    assert "--channels bgr" in command_line(again.report)
    assert again.report.inputs is not None
    assert again.report.inputs.samples == 8
    assert again.report.config["mean"] == [0.5, 0.4, 0.5]


def _line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--calibration", "PHOTOS"], "needs mean and std"),
        (["--calibration", "PHOTOS", "--mean", "0.5"], "belong together"),
        (["--mean", "0.5", "--std", "0.5"], "mean, std and channels are for a folder of images"),
        (["--calibration", "DATA", "--mean", "0.5", "--std", "0.5"], "is none: scale its arrays before"),
        (["--calibration", "PHOTOS", "--mean", "0,5x", "--std", "1"], "is not a list of numbers"),
    ],
)
def test_bad_options_are_one_line(model: Path, photos: Path, tmp_path: Path, options: list[str], says: str) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 3, 8, 8), np.float32))
    named = {"PHOTOS": str(photos), "DATA": str(tmp_path / "data.npz")}
    done = command("fold", model, tmp_path / "out.onnx", *(named.get(word, word) for word in options))
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_images_that_are_read_are_never_overwritten(model: Path, photos: Path) -> None:
    target = photos / "0" / "0.jpg"
    before = target.read_bytes()
    options = ["--calibration", photos, "--mean", "0.5", "--std", "0.5"]
    done = command("fold", model, target, *options)
    assert done.returncode == 2
    assert "is a file of --calibration" in done.stderr
    assert target.read_bytes() == before


def test_without_a_number_images_are_bounded(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view, scale = load(chain_conv(0)), pixel_scale(0.5, 0.5)
    assert model_inputs(view, "auto", photos, scale=scale).notes == ()
    monkeypatch.setattr(input_plan, "_FOLDER_BYTES", 1 << 10)
    monkeypatch.setattr(input_plan, "_FEWEST_IMAGES", 4)
    few = model_inputs(view, "auto", photos, scale=scale)
    assert few.samples == 4
    assert few.notes == ("at most 4 images are read, which take 1.0 KiB: --samples N reads more",)
    assert model_inputs(view, "auto", photos, scale=scale, samples=12).samples == 12


def test_what_a_run_costs_limits_no_images(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are given are used, as arrays are; memory and `samples` limit them."""
    monkeypatch.setattr(input_plan, "_RUN_COST", 1.0)
    monkeypatch.setattr(input_plan, "_FEWEST_SAMPLES", 2)
    view, scale = load(chain_conv(0)), pixel_scale(0.5, 0.5)
    assert model_inputs(view, "auto", photos, scale=scale).samples == 12
    assert model_inputs(view, "auto", photos, scale=scale, samples=5).samples == 5
    with memory.memory_limit(1 << 16):
        few = model_inputs(view, "auto", photos, scale=scale, samples=12)
    assert 0 < few.samples < 12
    assert any("the memory limit" in note for note in few.notes)
