"""Training of the reference networks: sizes of the first epochs, and going on from a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.training.loop import Recipe, fit, shown_size

RECIPE = Recipe(epochs=3, seed=0, crop_padding=2, batch_size=16, progressive=True)
RANDOM = np.random.default_rng(0)
IMAGES, LABELS = RANDOM.integers(0, 256, (48, 16, 16, 3)).astype(np.uint8), RANDOM.integers(0, 4, 48).astype(np.uint8)


class _Net(nn.Module):
    def __init__(self, ends_after: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.sizes: list[int] = []
        self.ends_after = ends_after

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(x.shape[-1])
        if self.ends_after and len(self.sizes) > self.ends_after:
            raise KeyboardInterrupt
        result: Tensor = self.layers(x)
        return result


def _fit(net: _Net, recipe: Recipe = RECIPE, checkpoint: Path | None = None) -> list[int]:
    fit(net, IMAGES, LABELS, ((0.5,) * 3, (0.2,) * 3), recipe, checkpoint)
    return net.sizes


def test_images_of_the_first_epochs_are_smaller() -> None:
    assert [shown_size(epoch, 6, 32) for epoch in range(1, 7)] == [20, 20, 24, 24, 32, 32]
    assert _fit(_Net()) == [10] * 3 + [12] * 3 + [16] * 3
    assert _fit(_Net(), replace(RECIPE, progressive=False)) == [16] * 9


@pytest.mark.parametrize("muon", [0.0, 0.05])
def test_an_interrupted_training_ends_with_the_same_weights(tmp_path: Path, muon: float) -> None:
    recipe = replace(RECIPE, muon=muon)
    whole, first, second = _Net(), _Net(ends_after=7), _Net()
    _fit(whole, recipe)
    with pytest.raises(KeyboardInterrupt):
        _fit(first, recipe, tmp_path / "state.pt")
    assert _fit(second, recipe, tmp_path / "state.pt") == [16] * 3  # the last epoch
    for name, values in whole.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], values, rtol=0, atol=0)


@pytest.mark.parametrize("muon", [0.0, 0.05])
def test_an_epoch_more_brings_the_loss_down(muon: float) -> None:
    net = _Net()
    history = fit(net, IMAGES, LABELS, ((0.5,) * 3, (0.2,) * 3), replace(RECIPE, epochs=8, muon=muon, max_lr=0.5))
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    weight = next(net.parameters())
    assert (abs(float(weight.detach().norm()) - len(weight) ** 0.5) < 1e-4) == (muon > 0)
