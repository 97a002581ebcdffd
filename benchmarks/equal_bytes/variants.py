"""The files that are compared: one network dense, folded, quantised, and both, as ONNX and as TFLite."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnxruntime.quantization import QuantType

import onnxfold
from benchmarks.accuracy.networks import Network
from onnxfold.export import export_model
from onnxfold.folding.open_model import open_scopes
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import save
from onnxfold.graph.run.session import in_batches
from onnxfold.inputs.given_inputs import load_arrays
from onnxfold.inputs.given_samples import UserSources
from onnxfold.inputs.input_plan import InputRequest
from onnxfold.inputs.make_inputs import model_inputs
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.progress import Progress
from onnxfold.quantize.quantize import quantize_int8

SPARSITIES = (0.0, 0.3, 0.5, 0.7, 0.85)
#: Other integer types than those of `fold --dtype int8`, which comes first.
TYPES = {
    "uint8, 7 bits": {},
    "uint8, 8 bits": {"reduce_range": False},
    "int8, 8 bits": {"reduce_range": False, "activation_qType": QuantType.QInt8},
}


@dataclass(frozen=True)
class Variant:
    """One file.

    Parameters
    ----------
    network : str
        Name of the dense network.
    runtime : {'onnx', 'tflite'}
        What reads it.
    sparsity : float
        Fraction of the weights that was removed; 0 for none.
    dtype : str
        'float32', 'int8', or other integer types by their name in :data:`TYPES`.
    path : Path
        The file.
    """

    network: str
    runtime: str
    sparsity: float
    dtype: str
    path: Path

    @property
    def key(self) -> str:
        """Name of the variant in results."""
        return f"{self.network}/{self.runtime}/{self.sparsity:g}/{self.dtype}"


def make_variants(network: Network, folder: Path, progress: Progress) -> Iterator[Variant]:
    """Yield all files of a network, the dense one first; what lies in the folder is not made again.

    All folds and quantisations are given the same generated inputs, whatever else runs on the machine.

    Parameters
    ----------
    network : Network
        The trained network.
    folder : Path
        Where the files lie.
    progress : callable
        Told what is being done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inputs = folder / f"{network.name}_inputs.npz"
    if not inputs.exists():
        progress(f"generate inputs of {network.name}", 0, 0)
        _write_inputs(network, inputs, progress)
    for sparsity in SPARSITIES:
        name = f"{network.name}_{100 * sparsity:.0f}"
        floats = folder / f"{name}.onnx" if sparsity else network.path
        if not floats.exists():
            progress(f"fold {name}", 0, 0)
            onnxfold.fold(network.path, sparsity, calibration=inputs).save(floats)
        yield Variant(network.name, "onnx", sparsity, "float32", floats)
        integers = folder / f"{name}_int8.onnx"
        if not integers.exists():
            progress(f"fold {name}, int8", 0, 0)
            onnxfold.fold(network.path, sparsity, dtype="int8", calibration=inputs).save(integers)
        yield Variant(network.name, "onnx", sparsity, "int8", integers)
        for dtype in ("float32", "int8"):
            exported = folder / f"{name}_{dtype}.tflite"
            if not exported.exists():
                progress(f"export {name}, {dtype}", 0, 0)
                # What int8 costs is what is measured here, so no tolerance of outputs is asked for.
                export_model(floats, exported, dtype=dtype, keep_nchw_inputs=True, verify=dtype != "int8")
            yield Variant(network.name, "tflite", sparsity, dtype, exported)
    yield from _other_types(network, folder, inputs, progress)


def _write_inputs(network: Network, file: Path, progress: Progress) -> None:
    """Write the inputs that a fold generates where it has all the time that it needs."""
    view = open_scopes(load(network.path))[0].view
    found = model_inputs(view, "auto", UserSources(), InputRequest(seconds=math.inf), progress=progress)
    np.savez(file, **{name: np.concatenate([batch[name] for batch in found.batches]) for name in found.batches[0]})


def _other_types(network: Network, folder: Path, inputs: Path, progress: Progress) -> Iterator[Variant]:
    """Yield the dense network in other integer types, calibrated on the same inputs."""
    files = {name: folder / f"{network.name}_{name.replace(', ', '_').replace(' ', '_')}.onnx" for name in TYPES}
    if not all(path.exists() for path in files.values()):
        progress(f"quantise {network.name} in other types", 0, 0)
        view = load(network.path)
        NORMALIZE(view)
        batches = list(in_batches(load_arrays(inputs), 64))
        for name, path in files.items():
            save(quantize_int8(view, batches, types=TYPES[name]).view, path)
    yield from (Variant(network.name, "onnx", 0.0, name, path) for name, path in files.items())
