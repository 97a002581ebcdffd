"""Torch networks of the test-suite, written from scratch (no torchvision), and their export to ONNX."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor, nn

Form = Literal["legacy-fused", "legacy-bn", "dynamo", "dynamo-raw"]
Stem = Literal["imagenet", "cifar"]
FORMS: Final[tuple[Form, ...]] = ("legacy-fused", "legacy-bn", "dynamo", "dynamo-raw")


class Net(nn.Module):
    """A network that knows the shape of one input sample."""

    def __init__(self, input_shape: tuple[int, ...], body: nn.Module) -> None:
        super().__init__()
        self.input_shape = input_shape
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


def example_input(module: Net, batch: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(batch, *module.input_shape, generator=torch.Generator().manual_seed(seed))


def _conv_bn(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU
) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), *([act()] if act else [])]


def _head(features: int, num_classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, num_classes)]


def vgg11_bn(
    num_classes: int = 10, width: int = 64, input_size: int = 32, classifier: Literal["imagenet", "small"] = "small"
) -> Net:
    """VGG-11 with batch norm; ``width=64, input_size=224, classifier="imagenet"`` is the published layout."""
    layers: list[nn.Module] = []
    inputs, spatial = 3, input_size
    for item in (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"):
        if isinstance(item, str):
            layers.append(nn.MaxPool2d(2))
            spatial //= 2
            continue
        # The published VGG keeps the bias of a convolution in front of batch norm.
        layers += [nn.Conv2d(inputs, item * width, 3, padding=1), nn.BatchNorm2d(item * width), nn.ReLU()]
        inputs = item * width
    if classifier == "imagenet":
        layers.append(nn.AdaptiveAvgPool2d(7))
        spatial, hidden = 7, [64 * width, 64 * width]
    else:
        hidden = [8 * width]
    layers.append(nn.Flatten())
    features = inputs * spatial * spatial
    for size in hidden:
        layers += [nn.Linear(features, size), nn.ReLU(), nn.Dropout()]
        features = size
    return Net((3, input_size, input_size), nn.Sequential(*layers, nn.Linear(features, num_classes)))


class Residual(nn.Module):
    """``act(branch(x) + shortcut(x))``; ``act`` is the identity in MobileNetV2."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        # Not nn.Identity: it would leave Identity nodes that the published networks do not have.
        self.shortcut = shortcut
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.shortcut is None else self.shortcut(x)
        out: Tensor = self.branch(x) + skip
        return out if self.act is None else self.act(out)


def _basic(inputs: int, width: int, stride: int) -> list[nn.Module]:
    return [*_conv_bn(inputs, width, 3, stride), *_conv_bn(width, width, act=None)]


def _bottleneck(inputs: int, width: int, stride: int) -> list[nn.Module]:
    return [
        *_conv_bn(inputs, width, 1),
        *_conv_bn(width, width, 3, stride),
        *_conv_bn(width, 4 * width, 1, act=None),
    ]


def _resnet(
    block: Callable[[int, int, int], list[nn.Module]],
    expansion: int,
    depths: tuple[int, ...],
    num_classes: int,
    width: int,
    stem: Stem,
    input_size: int,
) -> Net:
    layers: list[nn.Module]
    layers = _conv_bn(3, width, 7, 2) if stem == "imagenet" else _conv_bn(3, width)
    if stem == "imagenet":
        layers.append(nn.MaxPool2d(3, 2, padding=1))
    inputs = width
    for stage, depth in enumerate(depths):
        planes = width * 2**stage
        outputs = planes * expansion
        for index in range(depth):
            stride = 2 if stage and index == 0 else 1
            project = stride != 1 or inputs != outputs
            shortcut = nn.Sequential(*_conv_bn(inputs, outputs, 1, stride, act=None)) if project else None
            layers.append(Residual(nn.Sequential(*block(inputs, planes, stride)), shortcut, nn.ReLU()))
            inputs = outputs
    return Net((3, input_size, input_size), nn.Sequential(*layers, *_head(inputs, num_classes)))


def resnet18(num_classes: int = 10, width: int = 64, stem: Stem = "cifar", input_size: int | None = None) -> Net:
    """ResNet-18; ``num_classes=1000, stem="imagenet"`` is the published layout."""
    size = input_size or (224 if stem == "imagenet" else 32)
    return _resnet(_basic, 1, (2, 2, 2, 2), num_classes, width, stem, size)


def resnet50(num_classes: int = 10, width: int = 64, stem: Stem = "cifar", input_size: int | None = None) -> Net:
    """ResNet-50 (stride in the 3x3); ``num_classes=1000, stem="imagenet"`` is the published layout."""
    size = input_size or (224 if stem == "imagenet" else 32)
    return _resnet(_bottleneck, 4, (3, 4, 6, 3), num_classes, width, stem, size)


def _divisible(value: float, divisor: int) -> int:
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


def mobilenet_v2(
    num_classes: int = 10,
    width_mult: float = 1.0,
    stem: Stem = "cifar",
    input_size: int | None = None,
    divisor: int = 8,
) -> Net:
    """MobileNetV2; ``num_classes=1000, stem="imagenet"`` is the published layout, ``divisor`` rounds the widths."""
    stride = 2 if stem == "imagenet" else 1
    size = input_size or (224 if stem == "imagenet" else 32)
    inputs = _divisible(32 * width_mult, divisor)
    layers = _conv_bn(3, inputs, 3, stride, act=nn.ReLU6)
    settings = ((1, 16, 1, 1), (6, 24, 2, stride), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2))
    for expand, channels, repeats, first in (*settings, (6, 320, 1, 1)):
        outputs = _divisible(channels * width_mult, divisor)
        for index in range(repeats):
            step = first if index == 0 else 1
            hidden = inputs * expand
            branch = nn.Sequential(
                *(_conv_bn(inputs, hidden, 1, act=nn.ReLU6) if expand != 1 else []),
                *_conv_bn(hidden, hidden, 3, step, groups=hidden, act=nn.ReLU6),
                *_conv_bn(hidden, outputs, 1, act=None),
            )
            layers.append(Residual(branch) if step == 1 and inputs == outputs else branch)
            inputs = outputs
    # The published layout never narrows the last layer; the narrow ones of the tests do.
    last = _divisible(1280 * (max(1.0, width_mult) if stem == "imagenet" else width_mult), divisor)
    layers += _conv_bn(inputs, last, 1, act=nn.ReLU6)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(last, num_classes)]
    return Net((3, size, size), nn.Sequential(*layers, *head))


def mlp_bn(num_classes: int = 10, widths: tuple[int, ...] = (32, 24), inputs: int = 20) -> Net:
    layers: list[nn.Module] = []
    features = inputs
    for width in widths:
        layers += [nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU()]
        features = width
    return Net((inputs,), nn.Sequential(*layers, nn.Linear(features, num_classes)))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeeze: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeeze, 1),
            nn.ReLU(),
            nn.Conv2d(squeeze, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.gate(x)
        return out


def squeeze_excite_net(
    num_classes: int = 10, width: int = 16, input_size: int = 16, act: type[nn.Module] = nn.ReLU
) -> Net:
    """Two residual squeeze-excite blocks; ``act=nn.SiLU`` gives the EfficientNet flavour."""
    layers = _conv_bn(3, width, act=act)
    for _ in range(2):
        body = [*_conv_bn(width, 2 * width, act=act), SqueezeExcite(2 * width, max(4, width // 2))]
        layers.append(Residual(nn.Sequential(*body, *_conv_bn(2 * width, width, act=None)), act=act()))
    return Net((3, input_size, input_size), nn.Sequential(*layers, *_head(width, num_classes)))


def autoencoder(width: int = 12, input_size: int = 16) -> Net:
    body = nn.Sequential(
        *_conv_bn(3, width, 3, 2),
        *_conv_bn(width, 2 * width, 3, 2),
        nn.ConvTranspose2d(2 * width, width, 3, 2, padding=1, output_padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 2, 2),
        nn.Sigmoid(),
    )
    return Net((3, input_size, input_size), body)


def randomise(module: Net, seed: int, batch: int | None = None, passes: int = 3) -> Net:
    """Seed all weights in place, set batch norm statistics that fit them, and leave the module in eval mode."""
    if batch is None:
        batch = 16 if max(module.input_shape) <= 64 else 4
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)]
    # fork_rng: a test that calls this must not disturb the random state of another one.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for m in module.modules():
            if isinstance(m, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                if m.bias is not None:
                    nn.init.normal_(m.bias, std=0.1)
        # Gamma and beta come before the passes, so that the running statistics are those of the final
        # network, as they are after training; momentum None makes them the average over the passes.
        module.eval()
        momenta = [m.momentum for m in norms]
        for m in norms:
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.normal_(m.bias, std=0.2)
            m.reset_running_stats()
            m.momentum = None
            m.train()
        for _ in range(passes if norms else 0):
            module(torch.randn(batch, *module.input_shape))
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
    module.eval()
    return module


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def export(
    module: nn.Module,
    example: Tensor,
    path: Path | str,
    form: Form,
    dynamic_batch: bool = True,
    opset: int | None = None,
) -> Path:
    """Write one .onnx file with input "x" and output "y"; ``opset=None`` takes the exporter's own default."""
    return export_forms(module, example, {form: Path(path)}, dynamic_batch, opset)[form]


def export_forms(
    module: nn.Module,
    example: Tensor,
    paths: dict[Form, Path],
    dynamic_batch: bool = True,
    opset: int | None = None,
) -> dict[Form, Path]:
    """Write a file per form; the dynamo exporter traces once for both of its forms, which is most of its time."""
    module.eval()
    with _silence(), torch.no_grad():
        for form in ("legacy-fused", "legacy-bn"):
            if form in paths:
                _export_legacy(module, example, paths[form], form == "legacy-bn", dynamic_batch, opset)
        if "dynamo" in paths or "dynamo-raw" in paths:
            # torch.export specialises a dimension whose example size is 0 or 1.
            sample = example.repeat(2, *[1] * (example.ndim - 1)) if dynamic_batch and len(example) < 2 else example
            program = torch.onnx.export(
                module,
                (sample,),
                dynamo=True,
                optimize=False,
                input_names=["x"],
                output_names=["y"],
                dynamic_shapes=({0: torch.export.Dim("batch")},) if dynamic_batch else None,
                opset_version=opset,
                verbose=False,
            )
            assert program is not None
            if "dynamo-raw" in paths:
                program.save(str(paths["dynamo-raw"]), external_data=False)
            if "dynamo" in paths:
                program.optimize()  # what export(optimize=True) does with the same program
                program.save(str(paths["dynamo"]), external_data=False)
    return paths


def _export_legacy(
    module: nn.Module, example: Tensor, path: Path, keep: bool, dynamic_batch: bool, opset: int | None
) -> None:
    torch.onnx.export(
        module,
        (example,),
        str(path),
        dynamo=False,
        do_constant_folding=not keep,
        training=torch.onnx.TrainingMode.EVAL,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}} if dynamic_batch else None,
        opset_version=opset,
    )
