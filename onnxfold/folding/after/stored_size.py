"""The size of a model as it lies in its file: one number for all that inspects, folds and merges it."""

import os
from dataclasses import replace
from os import PathLike

from onnxfold.budget.costs.macs import model_size
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.files.model_files import lazy_files
from onnxfold.graph.files.save import file_bytes
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.token_plan import size_of
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.report import ModelSize


def bytes_of(model: ModelLike, view: GraphView) -> int:
    """Return the bytes of a model's files; of a ModelProto, those of the file that it would be."""
    if not isinstance(model, str | PathLike):
        return file_bytes(view)
    files = {os.path.realpath(path) for path in (model, *lazy_files(view))}
    return sum(os.path.getsize(path) for path in files if os.path.isfile(path))  # who reads a missing one says so


def stored_size(view: GraphView, size_bytes: int) -> ModelSize:
    """Return the size of a model before any form of it adds a product, or moves weights into others.

    Lengths that the model computes from constants are those of the normal form, which a copy is brought into.
    """
    size = replace(model_size(view), size_bytes=size_bytes)
    if size.macs is None:
        normal = view.copy()
        NORMALIZE(normal)
        counted = size_of(normal)
        size = replace(size, macs=counted.macs, macs_per=counted.macs_per)
    return size
