"""Weights and inputs for untrained networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Entry = tuple[nn.Module, tuple[Tensor, ...]]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
AFFINE = (*_BATCH_NORMS, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
LINEAR = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear,
)  # fmt: skip


def images(channels: int, *size: int) -> Callable[[int], Tensor]:
    """Return a generator of normal noise of shape (batch, channels, *size)."""
    return lambda batch: torch.randn(batch, channels, *size)


def tokens(length: int, entries: int = 20) -> Callable[[int], Tensor]:
    """Return a generator of integers of shape (batch, length)."""
    return lambda batch: torch.randint(entries, (batch, length))


def entry(build: Callable[[], nn.Module], *inputs: Callable[[int], Tensor], seed: int = 0) -> Entry:
    """Build a network with seeded weights and fitting statistics, and inputs of batch 2 for it."""
    # fork_rng: nobody else's random numbers change.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with torch.no_grad():
            module = build()
        randomise(module, *inputs)
        return module, tuple(make(2) for make in inputs)


@torch.no_grad()
def randomise(module: nn.Module, *inputs: Callable[[int], Tensor], batch: int = 16, passes: int = 3) -> None:
    """Draw weights, set batch norm statistics that fit them, leave the module in eval mode."""
    draw_weights(module.modules())
    fit_statistics(module, lambda: tuple(make(batch) for make in inputs), passes)


def draw_weights(layers: Iterable[nn.Module]) -> None:
    """Draw the weights of some layers in their order; layers of other types stay as they are."""
    for m in layers:
        if isinstance(m, LINEAR) and not nn.utils.parametrize.is_parametrized(m) and m.weight.requires_grad:
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            if m.bias is not None:
                nn.init.normal_(m.bias, std=0.1)
        elif isinstance(m, AFFINE) and m.weight is not None:
            nn.init.uniform_(m.weight, 0.5, 1.5)
            if m.bias is not None:
                nn.init.normal_(m.bias, std=0.2)
        elif isinstance(m, nn.MultiheadAttention):
            # nn.TransformerEncoder starts with copies of one layer, which exporters deduplicate.
            nn.init.xavier_uniform_(m.in_proj_weight)
            nn.init.normal_(m.in_proj_bias, std=0.1)


def fit_statistics(module: nn.Module, draw: Callable[[], tuple[Tensor, ...]], passes: int) -> None:
    """Set the running statistics of batch norms to those of drawn inputs, as after training; ends in eval mode."""
    module.eval()
    norms = [m for m in module.modules() if isinstance(m, _BATCH_NORMS)]
    momenta = [m.momentum for m in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the average over the passes
        norm.train()
    for _ in range(passes if norms else 0):
        module(*draw())
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    module.eval()
