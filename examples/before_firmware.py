"""Fold a classifier until it fits a microcontroller, and make firmware of it: ``python examples/before_firmware.py``.

Takes the bundled network unless a model is given. Needs the extra ``firmware``. The README of the project says how to
put it on the board.
"""

import argparse
from importlib.resources import as_file, files
from pathlib import Path

import onnxfold
from onnxfold.export.firmware import write_project


def main() -> None:
    """Fold for the memories of a device, and write a project for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="the classifier; by default, the bundled one")
    parser.add_argument("--device", default="arduino-nano-33-ble", help="a profile, see 'onnxfold fold --help'")
    parser.add_argument("--project", default="arduino", help="kind of the project: arduino, esp-idf or qemu")
    parser.add_argument("--out", type=Path, default=Path("firmware"), help="folder for the model and the project")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    folded = arguments.out / "folded.onnx"

    with as_file(files("onnxfold.data") / "lenet5_2x.onnx") as bundled:
        result = onnxfold.fold(arguments.model or bundled, device=arguments.device, inputs="dead-leaves")
        result.save(folded)
    print(result.report)
    project = write_project(folded, arguments.out / "project", arguments.project)
    print(f"{project.kind}: {len(project.files)} files in {project.path}, {project.arena_bytes:,} bytes of activations")


if __name__ == "__main__":
    main()
