"""Run one revision's side: ``python -P side.py CASES.json MODELS OUT CHECKOUT``, the checkout on PYTHONPATH.

It runs under revisions that do not have it, so it uses the public API only and imports nothing of this folder. Writes
what every case gave to ``OUT/results.json``, and the folded models beside it.
"""

import hashlib
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnxfold

#: What a report tells of the clock and of the versions, which are no results.
_NOT_RESULTS = frozenset({"seconds", "version", "versions", "latency"})
_TIME = re.compile(r"\d+(\.\d+)? s\b")
#: Measured latencies in what is printed, and the note that a fold is slower than its input.
_LATENCY = re.compile(r"latency|slower than its input")


def main(arguments: list[str]) -> int:
    """Run all cases; 1 if another tree than the checkout was imported."""
    cases, (models, out, checkout) = json.loads(Path(arguments[0]).read_text()), map(Path, arguments[1:])
    side = Side(models, out)
    results = {case["name"]: side.run(case) for case in cases}
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "onnxfold"]
    files = {str(module.__file__) for module in modules if getattr(module, "__file__", None)}
    strange = sorted(file for file in files if not Path(file).resolve().is_relative_to(checkout.resolve()))
    found = {"file": onnxfold.__file__, "strange": strange, "version": onnxfold.__version__, "results": results}
    (out / "results.json").write_text(json.dumps(found))
    return int(bool(strange))


class Side:
    """Runs cases and describes what they give.

    Parameters
    ----------
    models, out : Path
        Folders: where the models are, and where results go.
    """

    def __init__(self, models: Path, out: Path) -> None:
        self.models, self.out = models, out

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        """Return the result of one case, or its error's type and message."""
        options = self._placed(case["options"])
        model = self.models / f"{case['model']}.onnx"
        try:
            found: dict[str, Any] = getattr(self, case["kind"])(case["name"], model, **options)
        except Exception as error:  # whatever it is, it must be the same on both sides
            told = self._neutral(f"{type(error).__name__}: {error}")
            # An error of any other package is nothing that onnxfold says: this script, or onnxfold, is broken.
            return {"error": told} if type(error).__module__.startswith("onnxfold") else {"crash": told}
        return found

    def _placed(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._placed(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self._placed(entry) for entry in value]
        return value.format(models=self.models, out=self.out) if isinstance(value, str) else value

    def _neutral(self, text: str) -> str:
        return _TIME.sub("? s", text.replace(str(self.out), "{out}"))

    def _printed(self, text: str) -> str:
        return without_latencies(self._neutral(text))

    def fold(self, name: str, model: Path, **options: Any) -> dict[str, Any]:
        """Fold and save."""
        result = onnxfold.fold(model, **options)
        path = result.save(self.out / f"{name}.onnx")
        (self.out / f"{name}.json").write_text(result.report.to_json())
        return {**self._written(path), "text": self._printed(str(result.report))}

    def _written(self, path: Path) -> dict[str, Any]:
        """Describe a folded model, its weights' file, and its report."""
        weights = [digest(p.read_bytes()) for p in sorted(path.parent.glob(f"{path.name}.*"))]
        report = without(json.loads(path.with_suffix(".json").read_text()), _NOT_RESULTS)
        report["notes"] = [note for note in report["notes"] if not _LATENCY.search(note)]
        return {
            "file": [digest(path.read_bytes()), *weights],
            "graph": [digest(anonymous(onnx.load(str(path), load_external_data=False))), *weights],
            "report": json.loads(self._neutral(json.dumps(report))),
        }

    def inspect(self, name: str, model: Path) -> dict[str, Any]:
        """List the fold groups."""
        groups = onnxfold.inspect(model)
        return {"text": "\n".join(f"{g.name} {g.size} {g.block_count} {' '.join(g.nodes)}" for g in groups)}

    def compare(self, name: str, model: Path, b: str) -> dict[str, Any]:
        """Compare with another model, on generated inputs and on given ones."""
        with np.load(model.with_suffix(".npz")) as data:
            given = dict(data)
        reports = [onnxfold.compare(model, b), onnxfold.compare(model, b, given)]
        return {"report": [without(report.to_dict(), _NOT_RESULTS) for report in reports]}

    def export(self, name: str, model: Path, **options: Any) -> dict[str, Any]:
        """Export to TFLite."""
        path = importlib.import_module("onnxfold.export").to_tflite(model, self.out / f"{name}.tflite", **options)
        return {"file": [digest(path.read_bytes())]}

    def command(self, name: str, model: Path, arguments: list[str]) -> dict[str, Any]:
        """Run the command line; what it prints and writes."""
        command = [sys.executable, "-P", "-m", "onnxfold", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        path = self.out / f"{name}.onnx"
        printed = self._printed(f"{done.returncode}\n{done.stdout}\n{done.stderr}")
        return {**(self._written(path) if path.exists() else {}), "text": printed}


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def without_latencies(text: str) -> str:
    """Return a text without the lines that tell of latencies, wherever they stand."""
    return "\n".join(line for line in text.splitlines() if not _LATENCY.search(line))


def anonymous(model: onnx.ModelProto) -> bytes:
    """Return a model's bytes without the version of onnxfold in its provenance."""
    for prop in model.metadata_props:
        if prop.key == "onnxfold":
            prop.value = prop.value.replace(f'"version": "{onnxfold.__version__}"', '"version": ""')
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def without(value: Any, keys: frozenset[str]) -> Any:
    """Return plain values without the entries of these names, at any depth."""
    if isinstance(value, dict):
        return {key: without(entry, keys) for key, entry in value.items() if key not in keys}
    return [without(entry, keys) for entry in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
