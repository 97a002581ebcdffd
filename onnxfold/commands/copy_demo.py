"""Copy a bundled model and its labelled test images to a folder."""

from importlib.resources import files
from pathlib import Path

import numpy as np

from onnxfold.commands.run_demo import bundled_test_images
from onnxfold.files import check_own, made_folder, write
from onnxfold.folding.after.merge_map import npz_of

#: The test set, in the form that ``--data`` takes: an array named after the model's input, and labels.
TEST_SET = "fashion_mnist_test.npz"


def copy_demo(folder: Path, name: str = "lenet5_2x") -> list[Path]:
    """Copy a bundled model, the bundled test images as its inputs with their labels, and what is said about both."""
    images, labels = bundled_test_images()
    bundled = files("onnxfold.data")
    contents = {
        folder / f"{name}.onnx": (bundled / f"{name}.onnx").read_bytes(),
        folder / TEST_SET: npz_of({"image": images, "y": labels.astype(np.int64)}),
        folder / "README.md": (bundled / "README.md").read_bytes(),
    }
    check_own(contents, lambda path: path.read_bytes() == contents[path], "the demo")
    with made_folder(folder):
        write(contents)
    return list(contents)
