"""Adam: gradient descent with steps that are scaled by running moments of the gradient.

torch has it, too, but imports its compiler with it, which takes a second.

References
----------
Kingma and Ba: arXiv 1412.6980.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

#: How much of the running mean and of the running mean square a step keeps.
_KEPT_MEAN, _KEPT_SQUARE = 0.9, 0.999
_EPSILON = 1e-8


class Adam:
    """Moves tensors against their gradients."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self._leaves = leaves
        self._means = [torch.zeros_like(x) for x in leaves]
        self._squares = [torch.zeros_like(x) for x in leaves]
        self._done = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Take a step, and forget the gradients."""
        self._done += 1
        size = learning_rate / (1.0 - _KEPT_MEAN**self._done)
        root = math.sqrt(1.0 - _KEPT_SQUARE**self._done)
        for x, mean, square in zip(self._leaves, self._means, self._squares, strict=True):
            assert x.grad is not None
            mean.lerp_(x.grad, 1.0 - _KEPT_MEAN)
            square.mul_(_KEPT_SQUARE).addcmul_(x.grad, x.grad, value=1.0 - _KEPT_SQUARE)
            x.addcdiv_(mean, square.sqrt().div_(root).add_(_EPSILON), value=-size)
            x.grad = None
