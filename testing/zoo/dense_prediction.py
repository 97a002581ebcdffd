"""Segmentation: U-Net, FPN, DeepLab, HRNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from testing.zoo.blocks import Branches, Residual, conv_bn


def _double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(conv_bn(inputs, outputs), conv_bn(outputs, outputs))


class UNet(nn.Module):
    """U-Net; `bilinear` upsamples, else transposed convolutions do."""

    def __init__(self, width: int = 8, depth: int = 3, bilinear: bool = False, classes: int = 3) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(_double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList()
        self.merge = nn.ModuleList()
        for small, large in zip(reversed(widths[:-1]), reversed(widths[1:]), strict=True):
            if bilinear:
                upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
                self.up.append(nn.Sequential(upsample, nn.Conv2d(large, small, 1)))
            else:
                self.up.append(nn.ConvTranspose2d(large, small, 2, 2))
            self.merge.append(_double(2 * small, small))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Segment."""
        skips = []
        for index, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if index else x)
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips[:-1]), strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        out: Tensor = self.head(x)
        return out


def _basic(inputs: int, outputs: int, stride: int) -> nn.Module:
    branch = nn.Sequential(conv_bn(inputs, outputs, 3, stride), conv_bn(outputs, outputs, act=None))
    shortcut = conv_bn(inputs, outputs, 1, stride, act=None) if stride != 1 or inputs != outputs else None
    return Residual(branch, shortcut, nn.ReLU())


class Fpn(nn.Module):
    """Feature pyramid over a small ResNet: lateral 1x1, top-down nearest upsampling, 3x3; one output per scale."""

    def __init__(self, width: int = 8, pyramid: int = 16) -> None:
        super().__init__()
        self.stem = conv_bn(3, width, 3, 2)
        widths = [width, 2 * width, 4 * width]
        self.stages = nn.ModuleList(_basic(a, b, 2) for a, b in zip([width, *widths], widths, strict=False))
        self.lateral = nn.ModuleList(nn.Conv2d(w, pyramid, 1) for w in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(pyramid, pyramid, 3, padding=1) for _ in widths)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the pyramid, finest first."""
        features = []
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        top: Tensor | None = None
        outputs: list[Tensor] = []
        for feature, lateral, smooth in zip(features[::-1], self.lateral[::-1], self.smooth[::-1], strict=True):
            here = lateral(feature)
            top = here if top is None else here + functional.interpolate(top, scale_factor=2.0, mode="nearest")
            outputs.insert(0, smooth(top))
        return tuple(outputs)


class Retina(nn.Module):
    """FPN with heads that all scales share: the same weights run several times."""

    def __init__(self, width: int = 8, pyramid: int = 16, anchors: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.fpn = Fpn(width, pyramid)

        def tower(outputs: int) -> nn.Module:
            layers: list[nn.Module] = []
            for _ in range(2):
                layers += [nn.Conv2d(pyramid, pyramid, 3, padding=1), nn.ReLU()]
            return nn.Sequential(*layers, nn.Conv2d(pyramid, outputs, 3, padding=1))

        self.classes = classes
        self.score = tower(anchors * classes)
        self.box = tower(anchors * 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and boxes of all anchors."""
        levels = self.fpn(x)
        scores = [self.score(p).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, self.classes)) for p in levels]
        boxes = [self.box(p).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4)) for p in levels]
        return torch.cat(scores, 1).sigmoid(), torch.cat(boxes, 1)


class ImagePooling(nn.Module):
    """DeepLab's image-level features: pooled, convolved, spread over the image."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv_bn(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Interpolate to the input's size."""
        return functional.interpolate(self.conv(x), size=x.shape[-2:], mode="bilinear", align_corners=False)


class DeepLab(nn.Module):
    """DeepLabv3: dilated backbone, atrous spatial pyramid pooling, upsampled logits."""

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        wide = 4 * width
        self.backbone = nn.Sequential(
            conv_bn(3, width, 3, 2), _basic(width, 2 * width, 2), conv_bn(2 * width, wide, dilation=2)
        )
        rates = [conv_bn(wide, width, dilation=rate) for rate in (2, 4, 6)]
        self.aspp = Branches(conv_bn(wide, width, 1), *rates, ImagePooling(wide, width))
        self.head = nn.Sequential(conv_bn(5 * width, wide, 1), nn.Dropout(), conv_bn(wide, wide))
        self.classifier = nn.Conv2d(wide, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Segment at full resolution."""
        out = self.classifier(self.head(self.aspp(self.backbone(x))))
        return functional.interpolate(out, size=x.shape[-2:], mode="bilinear", align_corners=False)


class HighResolution(nn.Module):
    """HRNet: parallel resolutions that exchange features by strided convolutions and upsampled 1x1s."""

    def __init__(self, width: int = 8, joints: int = 5) -> None:
        super().__init__()
        high, low = width, 2 * width
        self.stem = nn.Sequential(conv_bn(3, high, 3, 2), _basic(high, high, 1))
        self.transition = conv_bn(high, low, 3, 2)
        self.high = nn.ModuleList(_basic(high, high, 1) for _ in range(2))
        self.low = nn.ModuleList(_basic(low, low, 1) for _ in range(2))
        self.down = nn.ModuleList(conv_bn(high, low, 3, 2, act=None) for _ in range(2))
        self.up = nn.ModuleList(conv_bn(low, high, 1, act=None) for _ in range(2))
        self.head = nn.Conv2d(high + low, joints, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return heat maps."""
        a = self.stem(x)
        b = self.transition(a)
        for high, low, down, up in zip(self.high, self.low, self.down, self.up, strict=True):
            a, b = high(a), low(b)
            raised = functional.interpolate(up(b), scale_factor=2.0, mode="nearest")
            a, b = functional.relu(a + raised), functional.relu(b + down(a))
        both = torch.cat([a, functional.interpolate(b, scale_factor=2.0, mode="bilinear", align_corners=False)], 1)
        out: Tensor = self.head(both)
        return out
