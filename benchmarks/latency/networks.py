"""The networks of the latency page: trained files where there are any, else untrained layouts, calibrated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.datasets import cifar10, imagenet_even
from benchmarks.training import networks as layouts
from testing.zoo import scalable
from testing.zoo.export import export

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

_EFFICIENTNET_PIXELS = 240


@dataclass(frozen=True)
class Network:
    """A network.

    Parameters
    ----------
    name : str
        In the page.
    files : tuple of str
        Names of trained files, the preferred one first.
    build : callable
        Makes an untrained network and one sample.
    images : callable, optional
        Takes the folder of data, returns labelled test images of the trained files.
    """

    name: str
    files: tuple[str, ...]
    build: Callable[[], tuple[nn.Module, torch.Tensor]]
    images: Callable[[Path], tuple[Images, Labels]] | None = None

    def path(self, folders: Sequence[Path], work: Path) -> tuple[Path, bool]:
        """Return the model's file, and whether it is trained; an untrained one is written to `work`."""
        for name in self.files:
            for folder in folders:
                if (folder / f"{name}.onnx").exists():
                    return folder / f"{name}.onnx", True
        path = work / f"{self.name.lower().replace(' ', '_')}.onnx"
        if not path.exists():
            module, sample = self.build()
            export(module, sample, path, "legacy-fused")
        return path, False


class _FeedForward(nn.Module):
    """The half of a transformer's block that has no attention."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens of the same shape (n, tokens, width)."""
        result: torch.Tensor = x + self.layers(self.norm(x))
        return result


def _feed_forward() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(*(_FeedForward(384, 1536) for _ in range(4))).eval(), torch.randn(1, 64, 384)


def _seeded(net: nn.Module, pixels: int) -> tuple[nn.Module, torch.Tensor]:
    shape = (3, pixels, pixels)
    return scalable.seeded(scalable.Net(shape, net), 0), torch.randn(1, *shape)


def _cifar(data: Path) -> tuple[Images, Labels]:
    images, labels = cifar10.load_test(data)
    return images, labels.astype(np.int64)


def _imagenet(data: Path) -> tuple[Images, Labels]:
    return imagenet_even.load(data, _EFFICIENTNET_PIXELS)


NETWORKS = (
    Network("ResNet18", ("resnet18_w32_cifar10_fused",), lambda: _seeded(layouts.resnet18(32), 32), _cifar),
    Network(
        "VGG11", ("vgg11_bn_w0.5_cifar10_fused", "vgg11_bn_w1_cifar10_fused"),
        lambda: _seeded(layouts.vgg11_bn(0.5), 32), _cifar,
    ),
    Network(
        "MobileNetV2", ("mobilenet_v2_w0.5_cifar10_fused", "mobilenet_v2_w1_cifar10_fused"),
        lambda: _seeded(layouts.mobilenet_v2(0.5), 32), _cifar,
    ),
    Network(
        "EfficientNet", ("efficientnet_lite1_imagenet_fused",),
        lambda: _seeded(scalable.mobilenet_v2(1000, 1.0, stem="imagenet", input_size=224), 224), _imagenet,
    ),
    Network("Transformer FFN", (), _feed_forward),
)  # fmt: skip
