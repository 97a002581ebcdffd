"""Export of torch networks to ONNX, in the forms of different exporters."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor, nn

Form = Literal["legacy-fused", "legacy-bn", "dynamo", "dynamo-raw"]
FORMS: Final[tuple[Form, ...]] = ("legacy-fused", "legacy-bn", "dynamo", "dynamo-raw")
Inputs = Tensor | tuple[Tensor, ...]


def export(
    module: nn.Module,
    inputs: Inputs,
    path: Path | str,
    form: Form,
    dynamic_batch: bool = True,
    opset: int | None = None,
) -> Path:
    """Write one .onnx file; see :func:`export_forms`."""
    return export_forms(module, inputs, {form: Path(path)}, dynamic_batch, opset)[form]


@torch.no_grad()
def export_forms(
    module: nn.Module,
    inputs: Inputs,
    paths: dict[Form, Path],
    dynamic_batch: bool = True,
    opset: int | None = None,
) -> dict[Form, Path]:
    """Write a file per form; the dynamo exporter traces once for both of its forms, which is most of its time.

    Parameters
    ----------
    module : Module
        Left in evaluation mode.
    inputs : Tensor or tuple of Tensor
        Examples, the batch first. A tensor alone becomes input "x" of output "y"; a tuple becomes inputs "x0", "x1",
        ... of outputs "y0", "y1", ....
    paths : dict of str to Path
        Where to write each form.
    dynamic_batch : bool
        Leave the size of the batch free.
    opset : int, optional
        Operator set; None takes the exporter's own default.

    Returns
    -------
    dict of str to Path
        `paths`.
    """
    module.eval()
    names = _names(module, inputs)
    samples = (inputs,) if isinstance(inputs, Tensor) else inputs
    with silence():
        for form in ("legacy-fused", "legacy-bn"):
            if form in paths:
                _export_legacy(module, samples, paths[form], form == "legacy-bn", names, dynamic_batch, opset)
        if "dynamo" in paths or "dynamo-raw" in paths:
            _export_dynamo(module, samples, paths, names, dynamic_batch, opset)
    return paths


Names = tuple[list[str], list[str]]


def _names(module: nn.Module, inputs: Inputs) -> Names:
    if isinstance(inputs, Tensor):
        return ["x"], ["y"]
    result = module(*inputs)
    outputs = 1 if isinstance(result, Tensor) else len(tuple(result))
    return [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(outputs)]


def _export_legacy(
    module: nn.Module,
    samples: tuple[Tensor, ...],
    path: Path,
    keep: bool,
    names: Names,
    dynamic_batch: bool,
    opset: int | None,
) -> None:
    inputs, outputs = names
    torch.onnx.export(
        module,
        samples,
        str(path),
        dynamo=False,
        do_constant_folding=not keep,
        training=torch.onnx.TrainingMode.EVAL,
        input_names=inputs,
        output_names=outputs,
        dynamic_axes={name: {0: "batch"} for name in (*inputs, *outputs)} if dynamic_batch else None,
        opset_version=opset,
    )


def _export_dynamo(
    module: nn.Module,
    samples: tuple[Tensor, ...],
    paths: dict[Form, Path],
    names: Names,
    dynamic_batch: bool,
    opset: int | None,
) -> None:
    # torch.export specialises a dimension whose example size is 0 or 1.
    if dynamic_batch:
        samples = tuple(s.repeat(2, *[1] * (s.ndim - 1)) if len(s) < 2 else s for s in samples)
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        module,
        samples,
        dynamo=True,
        optimize=False,
        input_names=names[0],
        output_names=names[1],
        dynamic_shapes=tuple({0: batch} for _ in samples) if dynamic_batch else None,
        opset_version=opset,
        verbose=False,
    )
    assert program is not None
    if "dynamo-raw" in paths:
        program.save(str(paths["dynamo-raw"]), external_data=False)
    if "dynamo" in paths:
        program.optimize()  # what export(optimize=True) does with the same program
        program.save(str(paths["dynamo"]), external_data=False)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
