"""Samples from a user, whatever holds them: arrays in memory, an ``.npz`` file, or a folder of images."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from onnxfold.config.pixels import PixelScale
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.run.session import InputInfo
from onnxfold.graph.tensors import Array
from onnxfold.inputs.given_inputs import UserSamples, checked_inputs, load_arrays, without_labels
from onnxfold.inputs.images.image_folder import read_images
from onnxfold.inputs.token_inputs import TEXT, complete_arrays
from onnxfold.inputs.tokens.interface import TokenInterface

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


NO_SOURCES = UserSources()


def is_folder(calibration: Given) -> bool:
    """Whether samples are images in a folder."""
    return not isinstance(calibration, Mapping) and Path(calibration).is_dir()


def text_file(calibration: Given) -> Path | None:
    """Return the text that samples are to be made of; None where they are something else."""
    path = None if isinstance(calibration, Mapping) else Path(calibration)
    return path if path is not None and path.suffix.lower() == TEXT else None


def given_samples(
    infos: list[InputInfo], calibration: Given, scale: PixelScale | None, *, most: int, requested: int | None = None,
    interface: TokenInterface | None = None,
) -> UserSamples:  # fmt: skip
    """Return samples as a model takes them."""
    if isinstance(calibration, Mapping):
        arrays, labels = without_labels(infos, calibration)
    elif is_folder(calibration):
        images = read_images(Path(calibration), infos, scale, most, requested)
        return replace(images, arrays=checked_inputs(infos, images.arrays))
    else:
        arrays, labels = without_labels(infos, load_arrays(Path(calibration)))
    if interface is None:
        return UserSamples(checked_inputs(infos, arrays), labels)
    made = complete_arrays(interface.with_session_types(infos), arrays)
    return UserSamples(made | checked_inputs([info for info in infos if info.name not in made], arrays), labels)
