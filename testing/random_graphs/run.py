"""Models on drawn inputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from testing.random_graphs.common import STATIC_BATCH, Array, Feeds

ort.set_default_logger_severity(4)


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    """Load a model with basic optimisations, as the library does."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto, *many: Feeds) -> list[list[Array]]:
    """All outputs for each set of inputs."""
    loaded = session(model)
    return [[np.asarray(y) for y in loaded.run(None, feeds)] for feeds in many]


def draw_feeds(model: onnx.ModelProto, seed: int, batch: int = STATIC_BATCH) -> Feeds:
    """Standard normal floats; small integers where the model wants integers."""
    rng = np.random.default_rng([seed, batch, 5])
    constants = {t.name for t in model.graph.initializer}
    feeds: Feeds = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else batch for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 3, shape)
        feeds[value.name] = drawn.astype(dtype)
    return feeds


def is_dynamic(model: onnx.ModelProto) -> bool:
    """Return whether the size of the batch is free."""
    return any(d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim[:1])
