"""Fold one network in the forms that exporters write, and write the page.

Usage: python -m benchmarks.forms [--models DIR --data DIR] [--sparsity S] [--only GLOB] [--out FILE.md]

Every form computes the same, so that its fold by defaults should keep as much. The bundled LeNet5-2x needs nothing
else; with --models and --data, ResNet32 of CIFAR-10 is folded, too. Top-1 is of 2,000 and of 5,000 test images.
"""

import argparse
import fnmatch
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

import onnxfold
from benchmarks.datasets.cifar10 import load_test
from onnxfold.commands.run_demo import bundled_test_images
from onnxfold.graph.run.session import Session
from testing.forms import FORMS, written_as

Array = npt.NDArray[Any]
RESNET, IMAGES = "resnet32_cifar10_fused", 5_000


def main() -> None:
    """Fold the networks in every form, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help=f"folder of {RESNET}.onnx")
    parser.add_argument("--data", type=Path, help="folder of cifar10_test.npz")
    parser.add_argument("--sparsity", type=float, default=0.5)
    parser.add_argument("--only", default="*", help="glob of the forms")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/forms.md"))
    args = parser.parse_args()
    networks = dict(_networks(args.models, args.data))
    forms = [name for name in FORMS if fnmatch.fnmatch(name, args.only)]
    rows: dict[str, list[tuple[float, float]]] = {}
    for form in forms:
        rows[form] = [_measure(*network, form, args.sparsity) for network in networks.values()]
        print(form, rows[form], flush=True)
    args.out.write_text(_page(list(networks), rows, args.sparsity), encoding="utf-8")


def _networks(models: Path | None, data: Path | None) -> Iterator[tuple[str, tuple[onnx.ModelProto, Array, Array]]]:
    """Yield networks whose first convolution reads their images, with standardised images and labels."""
    bundled = onnx.load(Path(onnxfold.__file__).parent / "data" / "lenet5_2x.onnx")
    yield "LeNet5-2x", (bundled, *bundled_test_images())
    if models is not None and data is not None:
        images, labels = load_test(data)
        network = onnx.load(models / f"{RESNET}.onnx")
        yield "ResNet32", _without_front(network, images[:IMAGES], labels[:IMAGES])


def _without_front(model: onnx.ModelProto, images: Array, labels: Array) -> tuple[onnx.ModelProto, Array, Array]:
    """Take Mul and Add of constants off the front of a network, and do them to the images."""
    graph = model.graph
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    steps: dict[str, Callable[[Array, Array], Array]] = {"Mul": np.multiply, "Add": np.add}
    while graph.node[0].op_type in steps:
        node = graph.node.pop(0)
        constant = next(weights[name] for name in node.input if name in weights)
        images = steps[node.op_type](images, constant).astype(np.float32)
        for reader in graph.node:
            reader.input[:] = [graph.input[0].name if name == node.output[0] else name for name in reader.input]
    return model, images, labels


def _measure(model: onnx.ModelProto, images: Array, labels: Array, form: str, sparsity: float) -> tuple[float, float]:
    """Return the share of right answers of a network in a form, before and after a fold by defaults."""
    network = written_as(model, form)
    folded = onnxfold.fold(network.model, sparsity=sparsity, verify=False, cache=None).model
    shown = network.feed(images)
    return _top1(network.model, shown, labels), _top1(folded, shown, labels)


def _top1(model: onnx.ModelProto, images: Array, labels: Array) -> float:
    session = Session(model)
    answers = session.run_in_batches({session.inputs[0].name: images}, 100)[0]
    classes = answers.argmax(axis=1) if answers.ndim > 1 else answers
    return float(np.mean(classes == labels))


def _page(networks: list[str], rows: dict[str, list[tuple[float, float]]], sparsity: float) -> str:
    head = "".join(f" {name} | folded |" for name in networks)
    lines = [f"| form |{head}", "|---|" + "---:|---:|" * len(networks)]
    for form, cells in rows.items():
        lines.append(f"| {form} |" + "".join(f" {before:.2%} | {after:.2%} |" for before, after in cells))
    return "\n".join([
        "# One network in many forms",
        "",
        "`python -m benchmarks.forms --models DIR --data DIR`: top-1 on test images, before and after a fold that",
        f"removes {sparsity:.0%} of the weights by defaults, without data. Every form computes the same of the same",
        "images, but for the rounding of bytes and of weights of 8 bits, and for pads of zeros where the first layer",
        "scales pixels.",
        "",
        *lines,
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
