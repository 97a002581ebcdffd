"""A network that normalises pixels by itself, in int8: agreement and accuracy on the test images of Fashion-MNIST.

python -m benchmarks.normalised_inside --data DIR
"""

import argparse
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import onnxfold
from benchmarks.datasets.fashion_mnist import MEAN, PADDING, STD, load_split

_BATCH = 500


def with_pixels(model: onnx.ModelProto) -> onnx.ModelProto:
    """Put /255 and the normalisation of Fashion-MNIST in front of a network with one input."""
    graph, name = model.graph, model.graph.input[0].name
    for node in graph.node:
        node.input[:] = ["normalised" if n == name else n for n in node.input]
    steps = [("Div", "to_one", 255.0), ("Sub", "mean", MEAN), ("Div", "std", STD)]
    names = [name, "scaled", "centred", "normalised"]
    for i, (operator, constant, value) in reversed(list(enumerate(steps))):
        graph.node.insert(0, helper.make_node(operator, [names[i], constant], [names[i + 1]]))
        graph.initializer.append(numpy_helper.from_array(np.float32(value), constant))
    return model


def _answers(model: onnx.ModelProto, x: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    parts = [session.run(None, {name: x[i : i + _BATCH]})[0] for i in range(0, len(x), _BATCH)]
    answers: npt.NDArray[np.int64] = np.concatenate(parts).argmax(axis=1)
    return answers


def main() -> None:
    """Print a row with inputs of unit deviation, and one with inputs that follow the graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the idx files")
    images, y = load_split(parser.parse_args().data, "test")
    x = np.pad(images, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))[:, None].astype(np.float32)
    bundled = Path(onnxfold.__file__).parent / "data" / "lenet5_2x.onnx"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pixels.onnx"
        onnx.save(with_pixels(onnx.load(bundled)), path)
        before = _answers(onnx.load(path), x)
        for title, known in (("inputs of unit deviation", False), ("inputs follow the graph", True)):
            if known:
                done = onnxfold.fold(path, sparsity=0, dtype="int8", cache=None)
            else:
                with (
                    patch("onnxfold.inputs.images.synthetic.input_scale", return_value=None),
                    patch("onnxfold.inputs.make_inputs.input_scale", return_value=None),
                ):
                    done = onnxfold.fold(path, sparsity=0, dtype="int8", cache=None)
            after = _answers(done.model, x)
            print(
                f"{title}: agreement {np.mean(before == after):.2%}, accuracy {np.mean(before == y):.2%} -> "
                f"{np.mean(after == y):.2%}"
            )


if __name__ == "__main__":
    main()
