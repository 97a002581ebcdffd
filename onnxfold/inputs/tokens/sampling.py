"""Tokens drawn from scores, and what repeats itself."""

import numpy as np

from onnxfold.errors import VerificationError
from onnxfold.graph.tensors import Array

#: Tokens that are less likely than the likeliest one by this factor are not drawn.
FLOOR = 0.02
#: Sequences of so many tokens should not come again.
_GRAM = 4


def draw_tokens(scores: Array, uniform: Array, temperature: Array, banned: Array) -> Array:
    """Return one token per row of scores."""
    scaled = np.where(banned[: scores.shape[1]], -np.inf, scores) / temperature[:, None]
    scaled -= scaled.max(axis=1, keepdims=True)
    if np.isnan(scaled).any():
        raise VerificationError("the scores of the model are not finite")
    chances = np.exp(scaled)
    chances[chances < FLOOR] = 0.0
    total = np.cumsum(chances, axis=1, dtype=np.float64)
    tokens: Array = (total > uniform[:, None] * total[:, -1:]).argmax(axis=1)
    return tokens


def variety(ids: Array) -> Array:
    """Return which part of the n-grams of every sequence are different from each other, shape (sequences,)."""
    if ids.shape[1] <= _GRAM:
        return np.ones(len(ids))
    grams = np.lib.stride_tricks.sliding_window_view(ids, _GRAM, axis=1)
    return np.array([len(np.unique(rows, axis=0)) / len(rows) for rows in grams])


def most_varied(ids: Array, count: int) -> Array:
    """Return so many sequences, those that repeat themselves most left out, in their order."""
    order = np.argsort(-np.round(variety(ids), 6), kind="stable")[:count]
    kept: Array = ids[np.sort(order)]
    return kept
