"""Networks whose exports are compared."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnxfold
from testing.zoo import export as zoo_export
from testing.zoo import scalable
from testing.zoo.export import export as export_zoo
from testing.zoo.table import ZOO

SPARSITY = 0.5
DATA = Path(onnxfold.__file__).parent / "data"


def networks(only: list[str] | None) -> dict[str, Callable[[Path], Path]]:
    """Return, by name, a function that writes the network's .onnx file into a folder."""
    named: dict[str, Callable[[Path], Path]] = {
        "LeNet5 (trained)": lambda _: DATA / "lenet5.onnx",
        "LeNet5-2x (trained)": lambda _: DATA / "lenet5_2x.onnx",
        "ResNet18, width 64": partial(_torch, scalable.resnet18),
        "VGG11-BN, width 64": partial(_torch, scalable.vgg11_bn),
        "MobileNetV2, width 1": partial(_torch, scalable.mobilenet_v2),
    }
    named |= {f"zoo: {name}": partial(_zoo, name) for name in ZOO}
    return {n: f for n, f in named.items() if not only or n.removeprefix("zoo: ") in only}


def _torch(build: Callable[[], scalable.Net], folder: Path) -> Path:
    net = scalable.seeded(build(), 0)
    return zoo_export.export(net, scalable.example_input(net), folder / f"{build.__name__}.onnx", "legacy-bn")


def _zoo(name: str, folder: Path) -> Path:
    module, inputs = ZOO[name]()
    return export_zoo(module, inputs, folder / f"zoo_{name}.onnx", "legacy-fused")


def fold_half(path: Path, folder: Path) -> Path:
    result = onnxfold.fold(path, SPARSITY, method="fold-ar")
    return result.save(folder / f"{path.stem}_folded.onnx")
