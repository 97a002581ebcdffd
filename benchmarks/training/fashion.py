"""Train an MLP with batch normalisation on Fashion-MNIST and export it to ONNX, with batch normalisation and fused.

Usage: python -m benchmarks.training.fashion --data DIR --out DIR --width F [--epochs E] ...

DIR with data holds the four Fashion-MNIST *-ubyte.gz files. The width is a factor on 784-256-256-10.
Written are mlp_w<F>[_l1-X|_l2-X]_fashion_{bn,fused}.onnx and a .json log.
The number of epochs is fixed; the test split is evaluated once, at the end.
"""

import argparse
import sys
from dataclasses import asdict

import numpy as np

from benchmarks.datasets import fashion_mnist
from benchmarks.training.export import write_network
from benchmarks.training.loop import add_arguments, fit, parse_recipe, penalty_suffix
from benchmarks.training.networks import mlp

CROP_PADDING = 0  # an MLP has no use for shifted images: flips only
MAX_LR = 0.1


def main() -> int:
    """Train, export, evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, default=1.0, help="factor on the 256 features of each hidden layer")
    add_arguments(parser, epochs=10)
    args = parser.parse_args()
    recipe = parse_recipe(parser, args, crop_padding=CROP_PADDING, max_lr=MAX_LR)
    try:
        model = mlp(args.width)
        images, labels = fashion_mnist.load_split(args.data, "train")
        test_images, test_labels = fashion_mnist.load_split(args.data, "test")
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    normalisation = ((fashion_mnist.MEAN,), (fashion_mnist.STD,))
    history = fit(model, images[..., np.newaxis], labels, normalisation, recipe, args.checkpoint)
    seconds = round(sum(epoch["seconds"] for epoch in history), 1)
    record = {"net": "mlp", "width": args.width, "seconds": seconds, "recipe": asdict(recipe), "history": history}
    stem = f"mlp_w{args.width:g}{penalty_suffix(args)}_fashion"
    write_network(model, args.out, stem, (fashion_mnist.preprocess(test_images), test_labels), record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
