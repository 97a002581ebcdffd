"""Detectors: YOLOv8's blocks, SSD, a YOLOv3-like one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from testing.zoo.blocks import Residual, conv_bn


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Module:
    return conv_bn(inputs, outputs, kernel, stride, act=nn.SiLU)


class C2f(nn.Module):
    """Cross-stage partial block: split in two, every bottleneck's result is kept and joined."""

    def __init__(self, inputs: int, outputs: int, depth: int, shortcut: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.first = _conv(inputs, 2 * half, 1)
        self.last = _conv((2 + depth) * half, outputs, 1)
        blocks = [nn.Sequential(_conv(half, half), _conv(half, half)) for _ in range(depth)]
        self.blocks = nn.ModuleList(Residual(b) if shortcut else b for b in blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        out: Tensor = self.last(torch.cat(parts, 1))
        return out


class Sppf(nn.Module):
    """Three poolings in a row, joined."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = _conv(inputs, inputs // 2, 1)
        self.last = _conv(inputs * 2, outputs, 1)
        self.pool = nn.MaxPool2d(5, 1, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        x = self.first(x)
        one = self.pool(x)
        two = self.pool(one)
        out: Tensor = self.last(torch.cat((x, one, two, self.pool(two)), 1))
        return out


class YoloV8(nn.Module):
    """YOLOv8: C2f backbone, SPPF, path aggregation neck, decoupled head with distribution focal loss decoding."""

    def __init__(self, width: int = 8, classes: int = 4, bins: int = 8) -> None:
        super().__init__()
        w = width
        self.bins, self.classes = bins, classes
        self.stem = nn.Sequential(_conv(3, w, 3, 2), _conv(w, 2 * w, 3, 2), C2f(2 * w, 2 * w, 1, True))
        self.stage3 = nn.Sequential(_conv(2 * w, 4 * w, 3, 2), C2f(4 * w, 4 * w, 2, True))
        self.stage4 = nn.Sequential(_conv(4 * w, 8 * w, 3, 2), C2f(8 * w, 8 * w, 1, True), Sppf(8 * w, 8 * w))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.top_down = C2f(12 * w, 4 * w, 1, False)
        self.down = _conv(4 * w, 4 * w, 3, 2)
        self.bottom_up = C2f(12 * w, 8 * w, 1, False)
        widths = (4 * w, 8 * w)
        self.box = nn.ModuleList(self._tower(c, 2 * w, 4 * bins) for c in widths)
        self.score = nn.ModuleList(self._tower(c, 2 * w, classes) for c in widths)
        self.expectation = nn.Conv2d(bins, 1, 1, bias=False).requires_grad_(False)
        self.expectation.weight.copy_(torch.arange(bins, dtype=torch.float32).view(1, bins, 1, 1))

    @staticmethod
    def _tower(inputs: int, inner: int, outputs: int) -> nn.Module:
        return nn.Sequential(_conv(inputs, inner), _conv(inner, inner), nn.Conv2d(inner, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return box distances and scores of all cells, (N, 4 + classes, cells)."""
        p3 = self.stage3(self.stem(x))
        p4 = self.stage4(p3)
        n3 = self.top_down(torch.cat([self.up(p4), p3], 1))
        n4 = self.bottom_up(torch.cat([self.down(n3), p4], 1))
        total = 4 * self.bins + self.classes
        levels = [
            torch.cat((box(f), score(f)), 1) for f, box, score in zip((n3, n4), self.box, self.score, strict=True)
        ]
        flat = torch.cat([level.view(level.shape[0], total, -1) for level in levels], 2)
        box, score = flat.split((4 * self.bins, self.classes), 1)
        batch, _, cells = box.shape
        spread = box.view(batch, 4, self.bins, cells).transpose(2, 1).softmax(1)
        distance = self.expectation(spread).view(batch, 4, cells)
        return torch.cat((distance, score.sigmoid()), 1)


class YoloV3(nn.Module):
    """Darknet residual blocks with LeakyReLU, two scales, raw heads reshaped per anchor."""

    def __init__(self, width: int = 8, anchors: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.anchors, self.fields = anchors, 5 + classes

        def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Module:
            return conv_bn(inputs, outputs, kernel, stride, act=lambda: nn.LeakyReLU(0.1))

        def block(channels: int) -> nn.Module:
            return Residual(nn.Sequential(conv(channels, channels // 2, 1), conv(channels // 2, channels)))

        w = width
        self.low = nn.Sequential(conv(3, w), conv(w, 2 * w, 3, 2), block(2 * w), conv(2 * w, 4 * w, 3, 2), block(4 * w))
        self.deep = nn.Sequential(conv(4 * w, 8 * w, 3, 2), block(8 * w), block(8 * w))
        self.side = conv(8 * w, 2 * w, 1)
        self.merge = nn.Sequential(conv(6 * w, 4 * w, 1), conv(4 * w, 4 * w))
        outputs = anchors * self.fields
        self.heads = nn.ModuleList([nn.Conv2d(8 * w, outputs, 1), nn.Conv2d(4 * w, outputs, 1)])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return one (N, anchors, H, W, fields) tensor per scale."""
        low = self.low(x)
        deep = self.deep(low)
        up = functional.interpolate(self.side(deep), scale_factor=2.0, mode="nearest")
        fine = self.merge(torch.cat([up, low], 1))
        outputs = []
        for head, feature in zip(self.heads, (deep, fine), strict=True):
            raw = head(feature)
            batch, _, height, width = raw.shape
            outputs.append(raw.view(batch, self.anchors, self.fields, height, width).permute(0, 1, 3, 4, 2))
        return tuple(outputs)


class Ssd(nn.Module):
    """SSD: heads on several VGG-like scales, boxes and scores joined over all anchors."""

    def __init__(self, width: int = 8, anchors: int = 4, classes: int = 4) -> None:
        super().__init__()
        w = width
        self.classes = classes

        def stage(inputs: int, outputs: int) -> nn.Module:
            first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
            return nn.Sequential(nn.MaxPool2d(2), first, nn.ReLU(), second, nn.ReLU())

        self.stem = nn.Sequential(nn.Conv2d(3, w, 3, padding=1), nn.ReLU())
        self.stages = nn.ModuleList([stage(w, 2 * w), stage(2 * w, 4 * w), stage(4 * w, 8 * w)])
        widths = (2 * w, 4 * w, 8 * w)
        self.boxes = nn.ModuleList(nn.Conv2d(c, anchors * 4, 3, padding=1) for c in widths)
        self.scores = nn.ModuleList(nn.Conv2d(c, anchors * classes, 3, padding=1) for c in widths)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes (N, anchors, 4) and class probabilities."""
        x = self.stem(x)
        boxes, scores = [], []
        for stage, box, score in zip(self.stages, self.boxes, self.scores, strict=True):
            x = stage(x)
            boxes.append(box(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4))
            scores.append(score(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, self.classes))
        return torch.cat(boxes, 1), functional.softmax(torch.cat(scores, 1), -1)
