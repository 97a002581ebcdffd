"""Samples from a user, whatever holds them: arrays in memory, an ``.npz`` file, or a folder of images.

An image that has the size of the input is taken as it is. Any other is scaled, bicubic, until the input covers 7/8 of
it, and the centre is cut out: what `Resize(256), CenterCrop(224)` does. Sizes come first, as everywhere with files of
others: what all images take together is counted before anything is allocated, and what one takes is known from its
header before it is decoded.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onnxfold.config.pixels import PixelScale
from onnxfold.errors import ConfigError
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.run.session import InputInfo, fixed_batch
from onnxfold.graph.tensors import Array
from onnxfold.inputs.given_inputs import UserSamples, checked_inputs, load_arrays, without_labels
from onnxfold.inputs.token_inputs import complete_arrays
from onnxfold.inputs.tokens.interface import TokenInterface
from onnxfold.machine import memory

#: Endings of the files that are read, in any case.
ENDINGS = (".jpg", ".jpeg", ".png")
_FORMATS = ("JPEG", "PNG")
#: Part of the short side that the centre has.
_CENTRE = 0.875
_MODES = {1: "L", 3: "RGB"}
_BYTE = 255.0
#: Where no scale is given, pixels stay as they are.
_AS_THEY_ARE = PixelScale((), (), _BYTE)


def read_images(
    folder: Path, infos: list[InputInfo], scale: PixelScale | None, most: int, requested: int | None = None
) -> UserSamples:
    """Read images of a folder and of the folders in it, sorted; of too many, at equal distances, so of every class."""
    if find_spec("PIL") is None:
        raise ConfigError("a folder of images needs Pillow, which is not installed: pip install pillow")
    scale = scale or _AS_THEY_ARE
    paths = image_files(folder)
    info, image_shape, is_last = _image_input(infos)
    _check_scale(info, image_shape[2], scale)
    batch = fixed_batch([info.shape]) or 1
    count = min(most, len(paths))
    count -= count % batch if count > batch else 0
    dtype = np.dtype(np.float32 if scale.mean else np.uint8)
    shape = (count, *(d or 0 for d in info.shape[1:]))
    needed = memory.array_bytes(shape, dtype.itemsize)
    memory.require(needed, f"{count} images of '{folder}'", "give fewer --samples, or more with --max-memory")
    pixels = np.empty(shape, dtype)
    read, unread, first = 0, 0, ""
    for path in (paths[i * len(paths) // count] for i in range(count)):
        try:
            values = _centre(path, image_shape)
        except Exception as error:  # what decoders raise on damaged files is not documented
            unread, first = unread + 1, first or f"'{path.relative_to(folder)}': {_reason(error)}"
            continue
        inputs = _inputs(values, scale)
        pixels[read] = inputs if is_last else inputs.transpose(2, 0, 1)
        read += 1
    if not read:
        raise ConfigError(f"none of {count} images of '{folder}' can be read; the first is {first}")
    notes = []
    if unread:
        notes.append(f"{unread} of {count} images of '{folder}' cannot be read and are left out; the first is {first}")
    if requested is not None and requested > len(paths):
        notes.append(f"{requested} samples were requested; '{folder}' holds {len(paths)} images")
    kept = pixels[: read - read % batch if read > batch else read]
    reason = f"{len(kept)} of {len(paths)} images of '{folder}', {scale}"
    return UserSamples({info.name: kept}, reason=reason, notes=tuple(notes))


def image_files(folder: Path) -> list[Path]:
    """Return the images of a folder and of those in it, sorted."""

    def refuse(error: OSError) -> None:
        raise ConfigError(f"'{error.filename or folder}' cannot be read: {error.strerror or error}")

    names = ((place, name) for place, _, names in os.walk(folder, onerror=refuse) for name in names)
    paths = sorted(Path(*file) for file in names if file[1].lower().endswith(ENDINGS) and not file[1].startswith("."))
    if not paths:
        raise ConfigError(f"'{folder}' holds no {', '.join(ENDINGS)} files: give the folder of the images")
    return paths


def _image_input(infos: list[InputInfo]) -> tuple[InputInfo, tuple[int, int, int], bool]:
    """Return the only input of a model, an image's height, width and channels, and whether channels are last."""
    if len(infos) != 1 or len(infos[0].shape) != 4:
        raise ConfigError("a folder of images is for a model with one input of rank 4: give an .npz file of arrays")
    info = infos[0]
    shown = f"input '{info.name}' of the shape [{', '.join('any' if d is None else str(d) for d in info.shape)}]"
    _, second, third, fourth = info.shape
    first, last = second in _MODES, fourth in _MODES
    if first == last:
        raise ConfigError(f"{shown} is no image of 1 or 3 channels, in front or last: give an .npz file of arrays")
    channels, height, width = (second, third, fourth) if first else (fourth, second, third)
    if height is None or width is None:
        raise ConfigError(f"{shown} has no fixed size to bring images to: give --input-shapes")
    return info, (height, width, channels or 0), last


def _check_scale(info: InputInfo, channels: int, scale: PixelScale) -> None:
    if info.dtype.kind in "biu" and info.dtype != np.uint8:
        raise ConfigError(f"input '{info.name}' is of the type {info.dtype}: give its values as an .npz file")
    if scale.is_bgr and channels == 1:
        raise ConfigError(f"input '{info.name}' has one channel, which has no order: leave out channels")
    if not scale.mean:
        if info.dtype == np.uint8:
            return
        raise ConfigError(
            "a folder of images needs mean and std of the pixels in training: --mean 0.485,0.456,0.406 --std "
            "0.229,0.224,0.225 for torchvision's ImageNet networks, --mean 0 --std 255 for inputs from 0 to 1"
        )
    if info.dtype == np.uint8:
        raise ConfigError(f"input '{info.name}' takes pixels as they are: leave out mean and std")
    for name, values in (("mean", scale.mean), ("std", scale.std)):
        if len(values) not in (1, channels):
            raise ConfigError(f"{name} has {len(values)} numbers, and the images have {channels} channels")


def _centre(path: Path, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image at the input's size, shape (height, width, channels)."""
    from PIL import Image

    height, width, channels = shape
    if not path.is_file():
        raise ValueError("no file")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=_FORMATS) as image:
            memory.require(image.width * image.height * 8, "decoding it")  # as it is, and converted
            if image.mode.startswith(("I", "F")):
                raise ValueError("16 bits a channel: save it with 8")
            fitted = image.convert(_MODES[channels])
    if fitted.size != (width, height):
        part = _CENTRE * min(fitted.width / width, fitted.height / height)
        left, top = (fitted.width - part * width) / 2, (fitted.height - part * height) / 2
        box = (left, top, fitted.width - left, fitted.height - top)
        fitted = fitted.resize((width, height), Image.Resampling.BICUBIC, box=box)
    return np.asarray(fitted, np.uint8).reshape(shape)


def _inputs(pixels: npt.NDArray[np.uint8], scale: PixelScale) -> Array:
    if scale.is_bgr:
        pixels = pixels[:, :, ::-1]
    if not scale.mean:
        return pixels
    mean, std = (np.array(values) * (_BYTE / scale.largest) for values in (scale.mean, scale.std))
    return ((pixels - mean) / std).astype(np.float32)


def _reason(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":  # whose text is the path
        return "neither a JPEG nor a PNG file"
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__


#: Types that may hold samples.
Given = str | PathLike[str] | Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class UserSources:
    """Files and arrays that a user gives beside a model."""

    samples: Given | None = None  # what a network is run on; None to generate inputs
    scale: PixelScale | None = None  # how pixels of a folder of images become inputs
    source: ModelLike | None = None  # the model that onnxruntime runs
    tokenizer: str | PathLike[str] | None = None
    adds_text: bool = False  # whether a language model writes texts of its own between the samples


def is_folder(calibration: Given) -> bool:
    """Whether samples are images in a folder."""
    return not isinstance(calibration, Mapping) and Path(calibration).is_dir()


def given_samples(
    infos: list[InputInfo], calibration: Given, scale: PixelScale | None, *, most: int, requested: int | None = None,
    interface: TokenInterface | None = None,
) -> UserSamples:  # fmt: skip
    """Return samples as a model takes them."""
    if not isinstance(calibration, Mapping):
        if is_folder(calibration):
            images = read_images(Path(calibration), infos, scale, most, requested)
            return replace(images, arrays=checked_inputs(infos, images.arrays))
        calibration = load_arrays(Path(calibration))
    arrays, labels = without_labels(infos, calibration)
    if interface is None:
        return UserSamples(checked_inputs(infos, arrays), labels)
    made = complete_arrays(interface.with_session_types(infos), arrays)
    return UserSamples(made | checked_inputs([info for info in infos if info.name not in made], arrays), labels)
