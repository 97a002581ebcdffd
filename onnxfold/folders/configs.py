"""Configurations of a folder, as they are written into its copy."""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxfold.folders.model_folder import GENAI, TRANSFORMERS, ModelFolder, read_config

#: Changes a configuration, given its name, in place.
Edit = Callable[[str, dict[str, Any]], None]


def configs_of(folder: ModelFolder) -> list[str]:
    """Return the names of the configurations that a folder holds."""
    return [name for name in (GENAI, TRANSFORMERS) if (folder.root / name).is_file()]


def with_configs(folder: ModelFolder, edit: Edit) -> ModelFolder:
    """Return a folder whose copy holds changed configurations."""
    edited: dict[Path, bytes] = {}
    for name in configs_of(folder):
        path = Path(os.path.realpath(folder.root / name))
        place = path.relative_to(folder.root)
        config = json.loads(folder.edited[place]) if place in folder.edited else read_config(path)
        edit(name, config)
        edited[place] = _format_like(path, config)
    return replace(folder, edited={**folder.edited, **edited})


def decoder_of(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the part about the decoder of genai's configuration; None where there is none."""
    model = config.get("model")
    decoder = model.get("decoder") if isinstance(model, dict) else None
    return decoder if isinstance(decoder, dict) else None


def parts_of(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the part about text of a configuration of transformers, empty where there is none, and the whole."""
    text = config.get("text_config")
    return (text if isinstance(text, dict) else {}), config


def _format_like(path: Path, config: dict[str, Any]) -> bytes:
    """Return a configuration with the indentation and the end that its file has."""
    text = path.read_text(encoding="utf-8", errors="replace")
    indentation = re.search(r"\n([ \t]+)\"", text)
    written = json.dumps(config, indent=indentation.group(1) if indentation else None, ensure_ascii=False)
    return (written + text[len(text.rstrip()) :]).encode()
