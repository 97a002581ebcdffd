"""Export of a trained network: ONNX files with and without batch normalisation, checks, a log."""

import json
import platform
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import torch
from torch import nn
from torch.fx.experimental.optimization import fuse

OPSET = 17
EVAL_BATCH_SIZE = 250
LOGIT_TOLERANCE = 1e-3
BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d)


def export_onnx(model: nn.Module, input_shape: tuple[int, ...], batch_norms: int, *, optimize: bool = False) -> bytes:
    """Serialise a model to ONNX with a dynamic batch, input ``image`` and output ``logits``.

    Parameters
    ----------
    model : Module
        In evaluation mode, on the CPU.
    input_shape : tuple of int
        Of one image, without the batch.
    batch_norms : int
        How many BatchNormalization nodes the graph must have.
    optimize : bool
        Let the exporter fold constants, which fuses batch normalisation into convolutions.

    Returns
    -------
    bytes
        A checked ONNX model.

    Raises
    ------
    RuntimeError
        If the graph has another number of BatchNormalization nodes.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            model.eval(),
            (torch.zeros(1, *input_shape),),
            path,
            dynamo=False,
            do_constant_folding=optimize,
            training=torch.onnx.TrainingMode.EVAL,
            opset_version=OPSET,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "N"}, "logits": {0: "N"}},
        )
        serialized = path.read_bytes()
    exported = onnx.load_from_string(serialized)
    onnx.checker.check_model(exported, full_check=True)
    found = Counter(node.op_type for node in exported.graph.node)["BatchNormalization"]
    if found != batch_norms:
        raise RuntimeError(f"the exported graph has {found} BatchNormalization nodes, expected {batch_norms}")
    return serialized


def count_batch_norms(model: nn.Module) -> int:
    """Return the number of batch normalisations of a model."""
    return sum(isinstance(module, BATCH_NORM) for module in model.modules())


def evaluation_batches(images: npt.NDArray[np.float32]) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the images in order, in batches that bound the memory of the activations."""
    for start in range(0, len(images), EVAL_BATCH_SIZE):
        yield images[start : start + EVAL_BATCH_SIZE]


def torch_logits(model: nn.Module, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the logits that torch computes, shape (n, 10)."""
    with torch.inference_mode():
        return np.concatenate([model(torch.from_numpy(batch)).numpy() for batch in evaluation_batches(images)])


def onnxruntime_logits(serialized: bytes, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the logits that onnxruntime computes, shape (n, 10)."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(["logits"], {"image": batch})[0] for batch in evaluation_batches(images)])


def accuracy(logits: npt.NDArray[np.float32], labels: npt.NDArray[np.uint8]) -> float:
    """Return the fraction of images whose largest logit is that of their class."""
    return float(np.mean(logits.argmax(axis=1) == labels))


def environment() -> dict[str, Any]:
    """Return the versions that the trained weights depend on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "onnx": onnx.__version__,
        "onnxruntime": ort.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


def write_network(
    model: nn.Module,
    out: Path,
    stem: str,
    test_split: tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]],
    record: dict[str, Any],
) -> dict[str, Any]:
    """Export a network with and without batch normalisation, check and evaluate both, and write them and a log.

    Parameters
    ----------
    model : Module
        In evaluation mode, on the CPU.
    out : Path
        Folder of ``<stem>_bn.onnx``, ``<stem>_fused.onnx`` and ``<stem>.json``; made where it is missing.
    stem : str
        First part of the names.
    test_split : tuple of ndarray
        Normalised images (n, channels, height, width) and labels (n,). They play no other part.
    record : dict
        What the log says of the training.

    Returns
    -------
    dict
        The log.

    Raises
    ------
    RuntimeError
        If onnxruntime does not reproduce torch's logits.
    """
    images, labels = test_split
    expected = torch_logits(model, images[:EVAL_BATCH_SIZE])
    files = {
        "bn": export_onnx(model, images.shape[1:], count_batch_norms(model)),
        "fused": export_onnx(fuse(model), images.shape[1:], 0, optimize=True),
    }
    log = dict(record, parameters=sum(p.numel() for p in model.parameters()), test_images=len(labels))
    for form, serialized in files.items():
        logits = onnxruntime_logits(serialized, images)
        # Logits rather than accuracy: a tie broken by rounding on another machine is no fault of the export.
        difference = float(np.abs(logits[: len(expected)] - expected).max())
        if not difference <= LOGIT_TOLERANCE:
            raise RuntimeError(f"{stem}_{form}: onnxruntime's logits are off by {difference:.3g}")
        log[f"test_accuracy_{form}"] = accuracy(logits, labels)
        log[f"max_logit_difference_{form}"] = float(f"{difference:.3g}")
    log["environment"] = environment()
    out.mkdir(parents=True, exist_ok=True)
    for form, serialized in files.items():
        (out / f"{stem}_{form}.onnx").write_bytes(serialized)
    (out / f"{stem}.json").write_text(json.dumps(log, indent=2) + "\n", encoding="utf-8")
    print(f"{stem}: test accuracy {log['test_accuracy_bn']:.2%}, fused {log['test_accuracy_fused']:.2%}", flush=True)
    return log
