"""Outputs of language models, and how much of an answer is lost."""

from dataclasses import dataclass

import numpy as np

from onnxfold.graph.tensors import Array


@dataclass(frozen=True)
class TokenAnswers:
    """What the outputs of a language model are.

    Parameters
    ----------
    vocabulary : int
        Number of ids; 0 where it is not known.
    states : tuple of str
        Outputs that hold caches: no answers, and each an early layer's.
    continue_text : bool
        Whether they say how a text goes on.
    """

    vocabulary: int = 0
    states: tuple[str, ...] = ()
    continue_text: bool = False

    def are_scores(self, values: Array) -> bool:
        """Whether an output has a score for every id."""
        return 1 < self.vocabulary <= int(values.shape[-1])


def divergence(was: Array, is_now: Array) -> float:
    """Return the mean Kullback-Leibler divergence, in nats, of the probabilities that scores stand for.

    Parameters
    ----------
    was, is_now : ndarray of shape (..., vocabulary)
        Scores before and after.
    """
    pairs = (values.reshape(-1, values.shape[-1]) for values in (was, is_now))
    return float(np.mean([_divergence(p, q) for p, q in zip(*pairs, strict=True)]))


def _divergence(was: Array, is_now: Array) -> float:
    p, q = (_log_softmax(values.astype(np.float64)) for values in (was, is_now))
    return float((np.exp(p) * (p - q)).sum())


def _log_softmax(scores: Array) -> Array:
    scores = scores - scores.max()
    found: Array = scores - np.log(np.exp(scores).sum())
    return found
