"""int8 exports of real models: which are written, how noisy their outputs are, and how the others are refused.

Usage: python -m benchmarks.int8 --models DIR [--images ZIP] [--jobs 4] [--resume] [--out benchmarks/int8.md]

Models that take photographs in a normalisation that their authors state get every fourth of `--images` for the ranges,
and others for the check; all other models get generated inputs, the check some of another seed.

Every file is exported in a process of its own, and its row is kept beside the page, in a .json of its name, as soon as
it is done. With `--resume`, rows that lie there are not measured again, but for those whose process ended.
"""

import argparse
import json
import re
import tempfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.in_child import run_in_child
from onnxfold.errors import OnnxFoldError
from onnxfold.export import export_model
from onnxfold.files import write

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_UNIT = {"mean": 0.0, "std": 255.0}
#: What makes inputs of pixels.
PIXELS: dict[str, dict[str, Any]] = {
    "animejanai": _UNIT,
    "face_mesh": _UNIT,
    "mediapipe_seg": _UNIT,
    "mobilefacenet": {"mean": 127.5, "std": 128.0},
    "mtcnn_onet": {"mean": 127.5, "std": 128.0},
    "nanodet_m": {"mean": (103.53, 116.28, 123.675), "std": (57.375, 57.12, 58.395), "channels": "bgr"},
    "osnet_x025": _IMAGENET,
    "ppocr_det_v2": _IMAGENET,
    "tbefn": _UNIT,
}
_HEAD = """# int8 exports of real models

Reproduce with `python -m benchmarks.int8 --models ../shared/real --images ../shared/data/imagenet_even_500.zip`. SNR is
that of the noisiest output, against onnxruntime in float32; a file below 20 dB is refused. *In float32*: operators that
stay so, because int8 loses most in them. *MACs*: part of the multiply-accumulates that int8 does.

| file | float32 | int8 | SNR (dB) | in float32 | MACs | s | inputs | refusal |
|---|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Export, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of .onnx files")
    parser.add_argument("--images", type=Path, help="archive of photographs")
    parser.add_argument("--jobs", type=int, default=4, help="files that are exported at a time")
    parser.add_argument("--resume", action="store_true", help="keep rows that an earlier run wrote")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/int8.md"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        images = None if args.images is None else _unpacked(args.images, Path(folder))
        measure = partial(_row, folder=Path(folder), images=images)
        rows = measure_files(args, sorted(args.models.glob("*.onnx")), measure)
    exported, written = (sum(row[i] == "yes" for row in rows) for i in (1, 2))
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    args.out.write_text(f"{_HEAD}{lines}\n\nOf {exported} files that are exported in float32, {written} are in int8.\n")
    print(args.out.read_text())


def measure_files(args: argparse.Namespace, paths: list[Path], measure: Callable[[Path], list[str]]) -> list[list[str]]:
    """Return the rows of files, each kept when it is done; files whose process ends have a row that says so."""
    store = args.out.with_suffix(".json")
    rows: dict[str, list[str]] = json.loads(store.read_text()) if args.resume and store.is_file() else {}
    with ThreadPoolExecutor(args.jobs) as pool:  # of children that are waited for
        waiting = {
            pool.submit(run_in_child, partial(measure, path), start="spawn"): path.stem
            for path in paths
            if rows.get(path.stem, _ended(path.stem)) == _ended(path.stem)
        }
        for job in as_completed(waiting):
            name = waiting[job]
            rows[name] = job.result() or _ended(name)
            print(" | ".join(rows[name]), flush=True)
            write({store: f"{json.dumps(rows, indent=1, sort_keys=True)}\n".encode()})
    return [rows[path.stem] for path in paths]


def _ended(name: str) -> list[str]:
    return [name, "", "", "", "", "", "", "", "worker ended"]


def _unpacked(archive: Path, folder: Path) -> dict[str, Path]:
    """Return folders of photographs, for the ranges and for the check."""
    with zipfile.ZipFile(archive) as content:
        names = [n for n in content.namelist() if n.endswith(".jpg")]
        for part, start in (("calibration", 0), ("data", 2)):
            content.extractall(folder / part, names[start::4])
    return {part: folder / part for part in ("calibration", "data")}


def _row(path: Path, folder: Path, images: dict[str, Path] | None) -> list[str]:
    """Return the row of a model."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        return _cells(path, Path(own) / "model.tflite", images)


def _cells(path: Path, target: Path, images: dict[str, Path] | None) -> list[str]:
    try:
        export_model(path, target)
    except OnnxFoldError as error:
        return [path.stem, "no", "", "", "", "", "", "", _short(error)]
    pictures = {**images, **PIXELS[path.stem]} if images is not None and path.stem in PIXELS else {}
    kind, start = "photographs" if pictures else "generated", time.perf_counter()
    try:
        report = export_model(path, target, dtype="int8", **pictures)
    except OnnxFoldError as error:
        noise, seconds = re.search(r"ratio of (-?[\d.]+) dB", str(error)), time.perf_counter() - start
        ratio = noise.group(1) if noise else ""
        return [path.stem, "yes", "no", ratio, "", "", f"{seconds:.0f}", kind, _short(error)]
    stays = (re.match(r"(\d+ of \d+) operators stay in float32, and int8 does (\d+%)", note) for note in report.notes)
    kept, macs = next((stay.groups() for stay in stays if stay), ("0", "100%"))
    snr = report.parity["snr_db"]
    return [path.stem, "yes", "yes", f"{snr:.1f}", kept, macs, f"{report.seconds:.0f}", kind, ""]


def _short(error: OnnxFoldError) -> str:
    return " ".join(str(error).split()).partition(": ")[2].partition("; nothing")[0][:160].replace("|", "/")


if __name__ == "__main__":
    main()
