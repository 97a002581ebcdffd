"""Share of a language model's weights that lie in fold groups."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from onnxfold.channels.declarations import Role
from onnxfold.channels.layers import linear_weights
from onnxfold.graph.files.load import load
from onnxfold.inspection import inspect_model
from onnxfold.passes.normalize.pipelines import NORMALIZE


def covered(path: Path, words: int) -> float:
    """Return the share of the conv/linear weights with either axis in groups, vocabulary and cache aside.

    Parameters
    ----------
    path : Path
        The file.
    words : int
        Size of the vocabulary: weights with an axis of this width are left out, and so are those of keys and values
        whose heads are inputs of the model.
    """
    found = inspect_model(path)
    view = load(path)
    NORMALIZE(view)
    held = {r.weight for r in found.refusals if "input 'past" in r.reason}
    sides: dict[tuple[str, Role], float] = defaultdict(float)
    # What a product that is cut in two has between its factors is no channel of the file.
    plain = [group for group in found.groups if not group.is_between_factors]
    for member in (m for group in plain for m in group.members):
        width = view.weights[member.axis.tensor].shape[member.axis.axis] * member.axis.blocks
        sides[member.axis.tensor, member.role] += member.positions.size / width
    names = [n for n in linear_weights(view) if words not in view.weights[n].shape and n not in held]
    total = sum(view.weight_size(n) * max(sides[n, Role.PRODUCER], sides[n, Role.CONSUMER]) for n in names)
    return total / sum(map(view.weight_size, names))
