"""The reference networks of the benchmarks: ResNet18, thin ResNets, VGG11-BN, MobileNetV2 and an MLP of any width."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from testing.zoo import scalable

VGG11_BASE = 64
VGG11_MULTIPLES = (1, "pool", 2, "pool", 4, 4, "pool", 8, 8, "pool", 8, 8, "pool")
RESNET18_STAGES = ((1, 1), (2, 2), (4, 2), (8, 2))  # multiple of the width, stride of the first block
THIN_STAGES = RESNET18_STAGES[:3]
MLP_BASE = 256


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes.

    Parameters
    ----------
    inputs, outputs : int
        Channels before and after.
    stride : int
        Of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return activations of shape (n, outputs, height / stride, width / stride)."""
        branch = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(branch)) + self.shortcut(x))


def resnet18(width: int = 64, classes: int = 10) -> nn.Module:
    """ResNet18 for 32x32 images: 3x3 stem of stride 1 without pooling, stages of 2-2-2-2 basic blocks.

    Parameters
    ----------
    width : int
        Channels of the stem and the first stage; the last stage has eight times as many.
    classes : int
        Number of logits.

    Returns
    -------
    Module
        Maps float32 (n, 3, 32, 32) to logits (n, classes).

    References
    ----------
    He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385.
    """
    return _basic_resnet(width, RESNET18_STAGES, 2, classes)


def thin_resnet(blocks: int, width: int = 16, classes: int = 10) -> nn.Module:
    """Narrow ResNet for 32x32 images: three stages of basic blocks; 3 blocks are ResNet20, 9 are ResNet56.

    Parameters
    ----------
    blocks : int
        Blocks per stage.
    width : int
        Channels of the stem and the first stage; the last stage has four times as many.
    classes : int
        Number of logits.

    Returns
    -------
    Module
        Maps float32 (n, 3, 32, 32) to logits (n, classes).

    References
    ----------
    He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385, section 4.2; shortcuts that change
    the shape are 1x1 convolutions here.
    """
    return _basic_resnet(width, THIN_STAGES, blocks, classes)


def _basic_resnet(width: int, stages: Sequence[tuple[int, int]], blocks: int, classes: int) -> nn.Module:
    """Return a 3x3 stem of stride 1, stages of so many basic blocks, and a classifier."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for multiple, stride in stages:
        outputs = multiple * width
        layers += [BasicBlock(inputs, outputs, stride), *(BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1))]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def mobilenet_v2(width: float = 1.0, classes: int = 10) -> nn.Module:
    """MobileNetV2 for 32x32 images: the first two strides are 1, the last convolution is narrowed with the others.

    Parameters
    ----------
    width : float
        Factor on the channels, which stay multiples of 8.
    classes : int
        Number of logits.

    Returns
    -------
    Module
        Maps float32 (n, 3, 32, 32) to logits (n, classes).

    References
    ----------
    Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", arXiv:1801.04381.
    """
    return scalable.mobilenet_v2(classes, width)


def vgg11_bn(width: float = 1.0, classes: int = 10) -> nn.Module:
    """VGG11 with batch normalisation for 32x32 images: eight convolutions, one fully connected layer.

    Parameters
    ----------
    width : float
        Factor on the 64 to 512 channels of the convolutions.
    classes : int
        Number of logits.

    Returns
    -------
    Module
        Maps float32 (n, 3, 32, 32) to logits (n, classes).

    References
    ----------
    Simonyan and Zisserman, "Very Deep Convolutional Networks", arXiv:1409.1556.
    """
    layers: list[nn.Module] = []
    inputs = 3
    for multiple in VGG11_MULTIPLES:
        if isinstance(multiple, str):
            layers.append(nn.MaxPool2d(2))
            continue
        outputs = scaled(VGG11_BASE * multiple, width)
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, classes))


def mlp(width: float = 1.0, inputs: int = 784, classes: int = 10) -> nn.Module:
    """Two hidden fully connected layers with batch normalisation.

    Parameters
    ----------
    width : float
        Factor on the 256 features of each hidden layer.
    inputs : int
        Pixels of an image.
    classes : int
        Number of logits.

    Returns
    -------
    Module
        Maps float32 (n, ...) of `inputs` values each to logits (n, classes).
    """
    hidden = scaled(MLP_BASE, width)
    layers: list[nn.Module] = [nn.Flatten()]
    for features in (inputs, hidden):
        # The bias is redundant, but without one the exporter writes Transpose and MatMul instead of Gemm.
        layers += [nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, classes))


def scaled(channels: int, factor: float) -> int:
    """Return `channels` times `factor`, which must be a whole number of at least one channel.

    Raises
    ------
    ValueError
        If it is not.
    """
    product = channels * factor
    if product < 1 or product != round(product):
        raise ValueError(f"width factor {factor:g} turns {channels} channels into {product:g}; choose whole numbers")
    return round(product)
