"""Fold a detector as Ultralytics exports it: ``python examples/after_detector_export.py yolo11n.onnx folded.onnx``.

The file comes from ``yolo export model=yolo11n.pt format=onnx``. Its input `images` takes pixels from 0 to 1. Detectors
lose more than classifiers: fold little, and on images of your own (``--images DIR``), without labels.
"""

import argparse
from pathlib import Path

import onnxfold


def main() -> None:
    """Fold the detector, show which layers stay, and how close the boxes are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the exported detector")
    parser.add_argument("folded", type=Path, help="the folded model to write")
    parser.add_argument("--images", type=Path, help="folder of JPEG and PNG files to fit the fold on")
    parser.add_argument("--sparsity", type=float, default=0.2, help="fraction of the weights to remove")
    arguments = parser.parse_args()

    # Pixels from 0 to 1: mean 0, and 255 in units of bytes.
    pixels = {} if arguments.images is None else {"calibration": arguments.images, "mean": 0, "std": 255}
    result = onnxfold.fold(arguments.model, arguments.sparsity, **pixels)
    result.save(arguments.folded)
    print(result.report)
    for refusal in result.report.refusals[:5]:
        print(f"left alone: {refusal.op_type} '{refusal.node}': {refusal.reason}")
    for output in onnxfold.compare(arguments.model, arguments.folded).outputs:
        print(f"{output.output}: relative error {output.relative_error:.3f} on generated images")


if __name__ == "__main__":
    main()
