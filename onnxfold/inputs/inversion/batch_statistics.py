r"""Normalisation by the running statistics that also measures the batch's, as one differentiable function.

With a = gamma / sqrt(var + eps) and b = beta - mu a, of every channel, and M samples per channel (batch times
positions), y = a x + b, m = mean(x), v = mean((x - m)^2). Given the gradients of a loss with respect to the three,

    dx = a dy + (dm + 2 (x - m) dv) / M .

Three operations of torch would read and write every activation about four times as often, and activations, not
arithmetic, are what takes time beside the convolutions.
"""

from typing import Any

import torch
from torch import Tensor


class NormalizeAndMeasure(torch.autograd.Function):
    """``(x, a, b, centre) -> (a x + b, mean, variance)`` for x of shape (N, C, ...) and vectors of length C.

    The centre, any value near the mean, keeps the variance from being the difference of large numbers.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor, centre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalised tensor, in the type of x, and the statistics of the batch, of length C."""
        with torch.autocast("cpu", enabled=False):
            # All is added up in the type of the vectors. Operations on two types would convert every piece twice.
            wide = x.to(a.dtype)
            y = torch.empty_like(wide)
            if _rows(x) is None:
                variance, mean = torch.var_mean(wide, [0, *range(2, x.ndim)], correction=0)
            else:
                mean, variance = _moments(wide, centre, y)
            ctx.save_for_backward(x, a, mean)
            return torch.addcmul(_along(b, x), wide, _along(a, x), out=y).to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient with respect to x."""
        dy, dm, dv = grads
        x, a, mean = ctx.saved_tensors
        samples = x.numel() // x.shape[1]
        slope = 2.0 / samples * dv
        dx = torch.addcmul(_along(dm / samples - slope * mean, x), x.to(a.dtype), _along(slope, x))
        return dx.addcmul_(dy.to(a.dtype), _along(a, x)).to(x.dtype), None, None, None


def _rows(x: Tensor) -> Tensor | None:
    """Return x as a matrix of samples and channels without copying it, None where its layout does not allow that."""
    moved = x.movedim(1, -1)
    return moved.reshape(-1, x.shape[1]) if moved.is_contiguous() else None


def _moments(x: Tensor, centre: Tensor, work: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the channels, with `work`, of the shape and layout of x, to compute in.

    Sums are products with a vector of ones, the fastest sum there is; no memory is allocated and few operations are
    called, since either costs more than the arithmetic.
    """
    rows = _rows(torch.sub(x, _along(centre, x), out=work))
    assert rows is not None
    ones = rows.new_ones(len(rows))
    shift = ones @ rows / len(rows)
    square = ones @ rows.square_() / len(rows)
    return centre + shift, (square - shift * shift).clamp_min(0.0)


def _along(vector: Tensor, x: Tensor) -> Tensor:
    return vector.view(-1, *[1] * (x.ndim - 2))
