"""Generative networks: autoencoders, DCGAN, super-resolution, style transfer, denoising."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from testing.zoo.blocks import Residual, conv_bn


def dcgan_generator(width: int = 8, latent: int = 16) -> nn.Module:
    """DCGAN: transposed convolutions from a 1x1 latent to an image."""
    layers: list[nn.Module] = []
    inputs = latent
    for index, factor in enumerate((4, 2, 1)):
        stride, padding = (1, 0) if index == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(inputs, factor * width, 4, stride, padding, bias=False)]
        layers += [nn.BatchNorm2d(factor * width), nn.ReLU(True)]
        inputs = factor * width
    return nn.Sequential(*layers, nn.ConvTranspose2d(inputs, 3, 4, 2, 1, bias=False), nn.Tanh())


def dcgan_from_vector(width: int = 8, latent: int = 16) -> nn.Module:
    """A generator whose first layer is linear, unflattened to an image."""
    return nn.Sequential(
        nn.Linear(latent, 4 * width * 16, bias=False), nn.BatchNorm1d(4 * width * 16), nn.ReLU(),
        nn.Unflatten(1, (4 * width, 4, 4)),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.Upsample(scale_factor=2), conv_bn(2 * width, width), nn.Conv2d(width, 3, 3, padding=1), nn.Tanh(),
    )  # fmt: skip


def espcn(width: int = 16, scale: int = 3) -> nn.Module:
    """ESPCN: convolutions at low resolution, then a pixel shuffle."""
    return nn.Sequential(
        nn.Conv2d(1, 2 * width, 5, padding=2), nn.Tanh(), nn.Conv2d(2 * width, width, 3, padding=1), nn.Tanh(),
        nn.Conv2d(width, scale**2, 3, padding=1), nn.PixelShuffle(scale),
    )  # fmt: skip


def edsr(width: int = 16, depth: int = 3) -> nn.Module:
    """EDSR: residual blocks without norms, pixel shuffle in the middle of the network."""
    blocks = [
        Residual(nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)))
        for _ in range(depth)
    ]
    body = Residual(nn.Sequential(*blocks, nn.Conv2d(width, width, 3, padding=1)))
    tail = [nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1)]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), body, *tail)


def dncnn(width: int = 16, depth: int = 5) -> nn.Module:
    """DnCNN: predicts the noise and takes it off the input."""
    inner = [conv_bn(width, width) for _ in range(depth)]
    net = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), *inner, nn.Conv2d(width, 1, 3, padding=1))
    return Residual(net)


def style_transfer(width: int = 8) -> nn.Module:
    """Johnson's transfer network: reflection padding, InstanceNorm, residual blocks, nearest upsampling."""

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        return [nn.ReflectionPad2d(kernel // 2), nn.Conv2d(inputs, outputs, kernel, stride)]

    def norm(channels: int) -> list[nn.Module]:
        return [nn.InstanceNorm2d(channels, affine=True)]

    w = width
    residual = [
        Residual(nn.Sequential(*conv(4 * w, 4 * w, 3), *norm(4 * w), nn.ReLU(), *conv(4 * w, 4 * w, 3), *norm(4 * w)))
        for _ in range(2)
    ]
    up = [nn.Upsample(scale_factor=2), *conv(4 * w, 2 * w, 3), *norm(2 * w), nn.ReLU()]
    up += [nn.Upsample(scale_factor=2), *conv(2 * w, w, 3), *norm(w), nn.ReLU()]
    down = [*conv(3, w, 9), *norm(w), nn.ReLU(), *conv(w, 2 * w, 3, 2), *norm(2 * w), nn.ReLU()]
    down += [*conv(2 * w, 4 * w, 3, 2), *norm(4 * w), nn.ReLU()]
    return nn.Sequential(*down, *residual, *up, *conv(w, 3, 9))


class Vae(nn.Module):
    """Convolutional variational autoencoder at its mean; three outputs."""

    def __init__(self, width: int = 8, latent: int = 8) -> None:
        super().__init__()
        self.width = width
        self.encoder = nn.Sequential(conv_bn(3, width, 3, 2), conv_bn(width, 2 * width, 3, 2), nn.Flatten())
        self.mean = nn.Linear(32 * width, latent)
        self.log_variance = nn.Linear(32 * width, latent)
        self.widen = nn.Linear(latent, 32 * width)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 3, 2, 1, output_padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 3, 2, 1, output_padding=1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return reconstruction, mean, log variance. 16 pixels."""
        code = self.encoder(x)
        mean, log_variance = self.mean(code), self.log_variance(code)
        image = functional.relu(self.widen(mean)).view(-1, 2 * self.width, 4, 4)
        return self.decoder(image), mean, log_variance


class PixelUnshuffleNet(nn.Module):
    """FFDNet-like: the image is unshuffled, denoised at low resolution, shuffled back."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        body = [conv_bn(width, width) for _ in range(3)]
        self.body = nn.Sequential(
            nn.Conv2d(5, width, 3, padding=1), nn.ReLU(), *body, nn.Conv2d(width, 4, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Denoise, with a noise map as fifth channel."""
        small = functional.pixel_unshuffle(x, 2)
        level = torch.full_like(small[:, :1], 0.1)
        return functional.pixel_shuffle(self.body(torch.cat([small, level], 1)), 2)
