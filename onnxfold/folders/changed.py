"""A folder whose copy states what changed in its model."""

from onnxfold.folders.head_counts import with_heads
from onnxfold.folders.layer_counts import with_layers
from onnxfold.folders.model_folder import ModelFolder
from onnxfold.inputs.tokens.cache_heads import Heads, changes_of


def with_changes(
    folder: ModelFolder | None, before: Heads, after: Heads, layers: tuple[int, list[int]] | None
) -> tuple[ModelFolder | None, tuple[str, ...]]:
    """Return the folder, if there is one, with its configurations, and notes on what changed."""
    notes = changes_of(before, after)
    if folder is None:
        return None, notes
    folder, head_notes = with_heads(folder, before, after)
    if layers is None:
        return folder, (*notes, *head_notes)
    folder, layer_notes = with_layers(folder, *layers)
    return folder, (*notes, *head_notes, *layer_notes)
