"""One interface to the installed TFLite interpreters."""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.errors import ExportError
from onnxfold.graph.tensors import Array

#: Packages in the order of preference; both have the same class.
PACKAGES = ("ai_edge_litert", "tflite_runtime")


def installed_interpreter() -> str | None:
    """Return the package whose interpreter would be used; None if none is installed."""
    for package in PACKAGES:
        if find_spec(package) is not None and find_spec(f"{package}.interpreter") is not None:
            return package
    return None


class TFLiteInterpreter:
    """A .tflite file loaded in an interpreter; arrays by the names of the signature."""

    def __init__(self, path: Path, package: str | None = None, *, threads: int = 1) -> None:
        self.package = package or installed_interpreter()
        if self.package is None:
            raise ExportError(
                "no TFLite interpreter is installed to check the file with: pip install "
                "ai-edge-litert flatbuffers, or give --no-verify"
            )
        module = import_module(f"{self.package}.interpreter")
        try:
            self._interpreter: Any = module.Interpreter(model_path=str(path), num_threads=threads)
            self._runner = self._interpreter.get_signature_runner()
            self._inputs = dict(self._runner.get_input_details())
            self._outputs = dict(self._runner.get_output_details())
        except (RuntimeError, ValueError) as error:
            raise ExportError(f"{self.package} does not load the file: {_one_line(error)}") from None

    def shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Return the shapes of 'inputs' and 'outputs' by name, with the size that a free batch has in the file."""
        sides = (("inputs", self._inputs), ("outputs", self._outputs))
        return {side: {n: tuple(int(d) for d in v["shape"]) for n, v in details.items()} for side, details in sides}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return all outputs by name; the inputs' first dimension may have any size where it is free.

        Floats go into quantised inputs, and come out of quantised outputs, by their scale and zero point.
        """
        try:
            outputs = self._runner(**{n: _quantise(v, self._inputs[n]) for n, v in feeds.items()})
        except (RuntimeError, ValueError) as error:
            raise ExportError(f"{self.package} fails while running the file: {_one_line(error)}") from None
        return {n: _dequantise(v, self._outputs[n]) for n, v in outputs.items()}

    def quantisation(self) -> dict[str, tuple[float, int]]:
        """Return scale and zero point of the inputs and outputs that are quantised."""
        details = {**self._inputs, **self._outputs}
        return {
            n: (float(d["quantization"][0]), int(d["quantization"][1]))
            for n, d in details.items()
            if d["quantization"][0]
        }


def _quantise(values: Array, detail: Mapping[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    if not scale or values.dtype.kind != "f":
        return values
    limits = np.iinfo(detail["dtype"])
    stored: Array = np.clip(np.round(values / scale) + zero, limits.min, limits.max).astype(detail["dtype"])
    return stored


def _dequantise(values: Array, detail: Mapping[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    return (values.astype(np.float32) - zero) * np.float32(scale) if scale else values


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
