"""Numbers of heads in the configurations of a folder, after heads of its model's caches went.

Whole groups of heads go: every head of keys and values with all query heads that read it. So their ratio stays, and
where all layers keep equally many, one number says it for all. `num_attention_heads` of ``config.json`` stays, because
libraries divide `hidden_size` by it for the size of a head.
"""

from typing import Any

from onnxfold.folders.configs import configs_of, decoder_of, parts_of, with_configs
from onnxfold.folders.model_folder import GENAI, ModelFolder
from onnxfold.inputs.tokens.cache_heads import Heads

_QUERIES, _SHARED = "num_attention_heads", "num_key_value_heads"
#: Their names in Falcon.
_OTHER_NAMES = ("num_kv_heads",)


def with_heads(folder: ModelFolder, before: Heads, after: Heads) -> tuple[ModelFolder, tuple[str, ...]]:
    """Return a folder whose copy states the heads of a folded model, and notes on what no configuration can state."""
    if before == after:
        return folder, ()
    names = configs_of(folder)
    was, is_now = set(before.values()), set(after.values())
    if len(was) != 1 or len(is_now) != 1:
        unequal = "layers keep different numbers of heads of keys and values, which no configuration states"
        return folder, (f"{unequal}: {' and '.join(names)} stayed; a runtime must read them from the model",)
    old, new = was.pop() or 0, is_now.pop() or 0
    notes: list[str] = []

    def edit(name: str, config: dict[str, Any]) -> None:
        if name == GENAI:
            _edit_genai(config, old, new)
        elif not _edit_transformers(config, new):
            notes.append(f"{name} stated no {_SHARED}: libraries that take {_QUERIES} for it cannot run this model")

    return with_configs(folder, edit), tuple(notes)


def _edit_genai(config: dict[str, Any], old: int, new: int) -> None:
    decoder = decoder_of(config)
    if decoder is None:
        return
    decoder[_SHARED] = new
    queries = decoder.get(_QUERIES)
    if isinstance(queries, int) and old and queries % old == 0:
        decoder[_QUERIES] = queries // old * new


def _edit_transformers(config: dict[str, Any], new: int) -> bool:
    """Write the number to where it stands, in the part about text perhaps; return whether it stood there."""
    for part in parts_of(config):
        for name in (_SHARED, *_OTHER_NAMES):
            if name in part:
                part[name] = new
                return True
    config[_SHARED] = new
    return False
