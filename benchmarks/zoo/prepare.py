"""Weights and inputs for untrained networks, and the four forms in which torch exports them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.torch_zoo import Form, _silence

Entry = tuple[nn.Module, tuple[Tensor, ...]]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_AFFINE = (*_BATCH_NORMS, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_LINEAR = (
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
    """Draw weights, set batch norm statistics that fit them, leave the module in eval mode.

    The way of tests.torch_zoo.randomise, for any number of inputs and more types of layers.
    """
    for m in module.modules():
        if isinstance(m, _LINEAR) and not nn.utils.parametrize.is_parametrized(m) and m.weight.requires_grad:
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            if m.bias is not None:
                nn.init.normal_(m.bias, std=0.1)
        elif isinstance(m, _AFFINE) and m.weight is not None:
            nn.init.uniform_(m.weight, 0.5, 1.5)
            if m.bias is not None:
                nn.init.normal_(m.bias, std=0.2)
        elif isinstance(m, nn.MultiheadAttention):
            # nn.TransformerEncoder starts with copies of one layer, which exporters deduplicate.
            nn.init.xavier_uniform_(m.in_proj_weight)
            nn.init.normal_(m.in_proj_bias, std=0.1)
    module.eval()
    norms = [m for m in module.modules() if isinstance(m, _BATCH_NORMS)]
    momenta = [m.momentum for m in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the average over the passes
        norm.train()
    for _ in range(passes if norms else 0):
        module(*(make(batch) for make in inputs))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    module.eval()


@torch.no_grad()
def export(module: nn.Module, inputs: tuple[Tensor, ...], path: Path, form: Form, dynamic_batch: bool = True) -> Path:
    """Write an .onnx file with inputs x0, x1, ... and outputs y0, y1, ...; as tests.torch_zoo.export does for one."""
    module.eval()
    result = module(*inputs)
    outputs = (result,) if isinstance(result, Tensor) else tuple(result)
    names_in = [f"x{i}" for i in range(len(inputs))]
    names_out = [f"y{i}" for i in range(len(outputs))]
    with _silence():
        if form in ("legacy-fused", "legacy-bn"):
            axes = {name: {0: "batch"} for name in (*names_in, *names_out)} if dynamic_batch else None
            torch.onnx.export(
                module,
                inputs,
                str(path),
                dynamo=False,
                do_constant_folding=form == "legacy-fused",
                training=torch.onnx.TrainingMode.EVAL,
                input_names=names_in,
                output_names=names_out,
                dynamic_axes=axes,
            )
            return path
        batch = torch.export.Dim("batch")
        program = torch.onnx.export(
            module,
            inputs,
            dynamo=True,
            optimize=form == "dynamo",
            input_names=names_in,
            output_names=names_out,
            dynamic_shapes=tuple({0: batch} for _ in inputs) if dynamic_batch else None,
            verbose=False,
        )
        assert program is not None
        program.save(str(path), external_data=False)
    return path
