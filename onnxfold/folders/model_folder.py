"""A folder as onnxruntime-genai's builder or optimum writes it, as a value.

It holds one ONNX model, perhaps with weights in files of their own, and what its runtime reads: configurations and a
tokenizer. The copy with another model in it is written whole or not at all; what is not known is copied as it is.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

from onnxfold.errors import ConfigError, ModelLoadError, ModelNotFoundError, UnsupportedModelError
from onnxfold.files import Entry, Output, entries_of, new_folder, reason
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.files.model_files import external_files
from onnxfold.machine import memory

#: Configurations of onnxruntime-genai, and of transformers, optimum and transformers.js.
GENAI, TRANSFORMERS = "genai_config.json", "config.json"

_ONNX = ".onnx"
#: Memory of a JSON file beside its bytes, as Python objects.
_OBJECTS = 12
#: So many files are named.
_SHOWN = 4

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class ModelFolder:
    """A folder with one model."""

    path: Path  # the folder as it was given
    root: Path  # the folder itself, links followed, wherever the process works
    place: Path  # the model's file, relative to the folder
    entries: tuple[Entry, ...]  # everything but the model and its weights
    has_weight_files: bool = False  # whether weights of the model lie in files of their own
    #: What a copy of the folder holds in the place of some of its files, by their places.
    edited: Mapping[Path, bytes] = field(default_factory=dict)
    draft: TemporaryDirectory[str] | None = None  # holds a changed model as long as this value lives

    @property
    def model(self) -> Path:
        """The model's file."""
        return self.path / self.place

    def output(self, path: Path, role: str) -> Output:
        """Return the folder that a copy becomes, as an output."""
        if path.suffix.lower() == _ONNX:
            raise ConfigError(f"'{self.path}' is a folder, so {role} is one, too: give the path of a new folder")
        return Output(path, role, is_folder=True)

    def write(self, path: Path, save: Callable[[Path], object]) -> None:
        """Write a copy with another model in it; it appears whole, or not at all."""
        with new_folder(path) as draft:
            for entry in self.entries:
                entry.copy(self.root, draft, self.edited.get(entry.place))
            save(draft / self.place)


def folder_of(model: ModelLike) -> ModelFolder | None:
    """Return the folder that stands for the model in it; None for a model that is given otherwise."""
    if not isinstance(model, str | os.PathLike):
        return None
    path = Path(model)
    if not os.path.isdir(path):  # whoever loads it says what is wrong
        return None
    if not any(map(os.path.isfile, (path / GENAI, path / TRANSFORMERS))):
        raise ModelNotFoundError(
            f"'{path}' is a folder without {GENAI} or {TRANSFORMERS}: give the path of an .onnx file"
        )
    entries = entries_of(path)
    place = _model_among(path, entries)
    root = Path(os.path.realpath(path))
    named = external_files(path / place)
    # Both the name that the model uses and, if that is a link, what it leads to; other links to weights stay links.
    own = {root / place, *(Path(resolve(file)) for resolve in (os.path.normpath, os.path.realpath) for file in named)}
    kept = (entry for entry in entries if root / entry.place not in own)
    return ModelFolder(path, root, place, tuple(kept), bool(named))


def model_file(model: ModelLike) -> ModelLike:
    """Return the model, that in it for a folder. Errors are those of :func:`folder_of`."""
    folder = folder_of(model)
    return model if folder is None else folder.model


def takes_folders(function: F) -> F:
    """Let a function of a model take a folder for the model in it."""

    @wraps(function)
    def opened(model: ModelLike, *args: Any, **kwargs: Any) -> Any:
        return function(model_file(model), *args, **kwargs)

    return cast(F, opened)


def read_config(path: Path) -> dict[str, Any]:
    """Return the entries of a configuration."""
    try:
        memory.require(_OBJECTS * path.stat().st_size, f"'{path}'")
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"'{path}' cannot be read: {reason(error)}") from None
    except (ValueError, RecursionError):
        raise ModelLoadError(f"'{path}' is not JSON: write the folder again") from None
    if not isinstance(config, dict):
        raise ModelLoadError(f"'{path}' holds no JSON object: write the folder again")
    return config


def part_of(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Return a part of a configuration, empty where there is none."""
    for key in keys:
        part = config.get(key)
        config = part if isinstance(part, dict) else {}
    return config


def _model_among(folder: Path, entries: tuple[Entry, ...]) -> Path:
    """Return the one model of a folder."""
    models = [entry.place for entry in entries if entry.place.suffix.lower() == _ONNX and not entry.is_folder]
    if not models:
        raise ModelNotFoundError(f"'{folder}' is a folder without an ONNX model: give the path of an .onnx file")
    if len(models) > 1:
        names = ", ".join(map(str, models[:_SHOWN])) + (", ..." if len(models) > _SHOWN else "")
        raise UnsupportedModelError(
            f"'{folder}' holds {len(models)} ONNX files ({names}), which are no single model: fold each file by itself"
        )
    decoder = part_of(read_config(folder / GENAI), "model", "decoder") if os.path.isfile(folder / GENAI) else {}
    expected = decoder.get("filename")
    if isinstance(expected, str) and Path(expected) != models[0]:
        raise ModelNotFoundError(f"'{folder / GENAI}' names the model '{expected}', and the folder holds '{models[0]}'")
    if next(entry for entry in entries if entry.place == models[0]).target is not None:
        raise ConfigError(f"'{folder / models[0]}' is a link: put the model in its place")
    return models[0]
