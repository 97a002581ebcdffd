"""Numbers of layers in the configurations of a folder, after layers of its model went."""

from typing import Any

from onnxfold.folders.configs import decoder_of, parts_of, with_configs
from onnxfold.folders.model_folder import GENAI, ModelFolder

_LAYERS = "num_hidden_layers"
#: Their names in GPT-2 and others.
_OTHER_NAMES = ("n_layer", "num_layers", "n_layers")
#: Lists with an entry per layer.
_PER_LAYER = ("layer_types",)


def with_layers(folder: ModelFolder, before: int, left: list[int]) -> tuple[ModelFolder, tuple[str, ...]]:
    """Return a folder whose copy states how many layers are left, and notes on what could not be stated."""
    silent: list[str] = []

    def edit(name: str, config: dict[str, Any]) -> None:
        parts = (decoder_of(config) or {},) if name == GENAI else parts_of(config)
        if not any(_state(part, before, left) for part in parts):
            silent.append(name)

    changed = with_configs(folder, edit)
    return changed, tuple(f"{name} did not state {before} layers, and stayed as it is" for name in silent)


def _state(part: dict[str, Any], before: int, left: list[int]) -> bool:
    """Write the number to where it stands; return whether it stood there."""
    key = next((key for key in (_LAYERS, *_OTHER_NAMES) if part.get(key) == before), None)
    if key is None:
        return False
    part[key] = len(left)
    for name in _PER_LAYER:
        if isinstance(part.get(name), list) and len(part[name]) == before:
            part[name] = [part[name][i] for i in left]
    sliding = part.get("sliding_window")
    if isinstance(sliding, dict) and isinstance(sliding.get("layers"), list):
        sliding["layers"] = [left.index(i) for i in sliding["layers"] if i in left]
    return True
