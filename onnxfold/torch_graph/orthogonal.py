"""Steps of training relative to the size of weights, where wanted the same in every direction of a matrix."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

#: How much of the running mean and of the running mean square a step keeps.
_MOMENTUM, _KEPT_MEAN, _KEPT_SQUARE = 0.9, 0.9, 0.99
#: Coefficients of a polynomial whose fifth iterate maps singular values in (0, 1] close to 1.
_A, _B, _C, _ITERATIONS = 3.4445, -4.7750, 2.0315, 5
#: Tables of words are wider, and most of their rows have no gradient in a step.
_WIDEST = 8192
_TINY = 1e-12


class RelativeSteps:
    """Moves weights by steps relative to their size: matrices by their orthogonalised momentum, or all by Adam.

    Folded networks keep few directions per layer, whose gradients differ by orders; an orthogonalised step moves all of
    them alike (Muon: Jordan et al., 2024). Scales, biases and wide tables go by Adam.
    """

    def __init__(self, weights: Sequence[Tensor], *, orthogonal: bool = True) -> None:
        self._weights = weights
        self._sizes = [max(float(w.detach().square().mean().sqrt()), _TINY) for w in weights]
        self._means = [torch.zeros_like(w) for w in weights]
        # Matrices mix several channels into several, few enough to be multiplied with each other.
        matrices = [
            orthogonal and w.ndim >= 2 and min(w.shape[:2]) > 1 and max(w.shape[:2]) <= _WIDEST for w in weights
        ]
        self._squares = [None if m else torch.zeros_like(w) for m, w in zip(matrices, weights, strict=True)]
        self._done = 0

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Take a step of a length relative to each weight's root mean square, and forget the gradients."""
        self._done += 1
        for i, weight in enumerate(self._weights):
            if weight.grad is not None:
                weight.sub_(self._direction(i, weight.grad), alpha=rate * self._sizes[i])
                weight.grad = None

    def _direction(self, i: int, gradient: Tensor) -> Tensor:
        """Return where a weight goes, with a root mean square of about 1."""
        mean, square = self._means[i], self._squares[i]
        if square is None:
            mean.mul_(_MOMENTUM).add_(gradient)
            moved: Tensor = orthogonalise((gradient + _MOMENTUM * mean).flatten(1)).reshape(gradient.shape)
            moved /= moved.square().mean().sqrt().clamp_min(_TINY)
            return moved
        mean.lerp_(gradient, 1.0 - _KEPT_MEAN)
        square.mul_(_KEPT_SQUARE).addcmul_(gradient, gradient, value=1.0 - _KEPT_SQUARE)
        root = square.div(1.0 - _KEPT_SQUARE**self._done).sqrt().add_(_TINY)
        return mean / (1.0 - _KEPT_MEAN**self._done) / root


def orthogonalise(matrix: Tensor) -> Tensor:
    """Return a matrix of shape (m, n) with the same singular vectors and singular values close to 1."""
    tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if tall else matrix
    x: Tensor = wide / wide.norm().clamp_min(_TINY)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.T if tall else x


def half_cosine(done: int, steps: int) -> float:
    """Return the factor of a step's length, from 1 down to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * done / steps))
