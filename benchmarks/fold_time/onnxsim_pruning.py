"""Wall time of folding a full-width ResNet18, compared with onnxsim's structured pruning.

`python -m benchmarks.fold_time` without `--parent` runs it.

Both get the same file (BatchNormalization fused, because onnxsim prunes nothing where it is kept; onnxfold
also the file with BatchNormalization) and start from a path. onnxfold's figure includes loading,
verification in onnxruntime, and writing; onnxsim's is the call plus onnx.save.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx

import onnxfold
from onnxfold import api
from testing.zoo import export as zoo_export
from testing.zoo import scalable


def main(repeats: int, out: Path | None) -> None:
    """Export, time, print."""
    with tempfile.TemporaryDirectory() as name:
        rows = run(Path(name), repeats)
    for row in rows:
        print(f"{row['tool']:<34} {row['model']:<14} {row['seconds']:6.2f} s   removed {row['removed']:.1%}")
    fused = {row["tool"]: row["seconds"] for row in rows if row["model"] == "legacy-fused"}
    print(
        f"ratio onnxfold / onnxsim (fused): {fused['onnxfold fold-ar'] / fused['onnxsim apply_structured_pruning']:.2f}"
    )
    if out is not None:
        out.write_text(json.dumps(rows, indent=2) + "\n")


def run(folder: Path, repeats: int) -> list[dict[str, object]]:
    """Return one row per tool and model, times as medians."""
    net = scalable.resnet18(width=64, num_classes=1000, stem="imagenet")
    scalable.seeded(net, 0)
    rows: list[dict[str, object]] = []
    for form in ("legacy-bn", "legacy-fused"):
        path = folder / f"{form}.onnx"
        zoo_export.export(net, scalable.example_input(net), path, form)  # type: ignore[arg-type]
        before = api.measure(path).parameters
        tools: list[tuple[str, Callable[[], Path]]] = [("onnxfold fold-ar", lambda p=path: _onnxfold(p))]  # type: ignore[misc]
        tools.append(("onnxsim apply_structured_pruning", lambda p=path: _onnxsim(p)))  # type: ignore[misc]
        for tool, call in tools:
            seconds = []
            for _ in range(repeats):
                start = time.perf_counter()
                out = call()
                seconds.append(time.perf_counter() - start)
            removed = 1 - api.measure(out).parameters / before
            rows.append({"tool": tool, "model": form, "seconds": statistics.median(seconds), "removed": removed})
    return rows


def _onnxfold(path: Path) -> Path:
    return onnxfold.fold(path, 0.5, method="fold-ar", allocation="uniform").save(path.with_suffix(".folded.onnx"))


def _onnxsim(path: Path) -> Path:
    import onnxsim  # in the extra `bench`

    out = path.with_suffix(".pruned.onnx")
    onnx.save(onnxsim.apply_structured_pruning(str(path), sparsity=0.293), str(out))
    return out
