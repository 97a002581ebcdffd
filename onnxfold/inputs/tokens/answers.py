"""Outputs of language models, and how much of an answer is lost."""

from dataclasses import dataclass

import numpy as np

from onnxfold.graph.tensors import Array, Matrix


@dataclass(frozen=True)
class TokenAnswers:
    """Facts about the outputs of a language model."""

    vocabulary: int = 0  # number of ids; 0 where it is not known
    states: tuple[str, ...] = ()  # outputs that hold caches: no answers, and each an early layer's
    continue_text: bool = False  # whether they say how a text goes on

    def are_scores(self, values: Array) -> bool:
        """Whether an output has a score for every id."""
        return 1 < self.vocabulary <= int(values.shape[-1])


@dataclass(frozen=True, eq=False)
class TokenFacts:
    """Facts about a language model, and about its inputs; nothing is known of other networks."""

    answers: TokenAnswers | None = None  # about the outputs
    short: dict[str, Array] | None = None  # a batch of a few short sequences
    words: Matrix | None = None  # how common every token is


class Answers:
    """Scores of a network, which those of others are compared with: their logarithms are computed once."""

    def __init__(self, scores: Array) -> None:
        self._logs = log_softmax(scores.reshape(-1, scores.shape[-1]))

    def divergence(self, scores: Array) -> float:
        """Return the mean Kullback-Leibler divergence, in nats, of what other scores stand for from what these do."""
        pairs = zip(self._logs, scores.reshape(len(self._logs), -1), strict=True)
        return float(np.mean([(np.exp(p) * (p - log_softmax(row))).sum() for p, row in pairs]))


def log_softmax(scores: Array) -> Matrix:
    """Return the logarithms of the probabilities that scores stand for, along the last axis."""
    rest = scores.astype(np.float64)
    rest -= rest.max(axis=-1, keepdims=True)
    rest -= np.log(np.exp(rest).sum(axis=-1, keepdims=True))
    return rest
