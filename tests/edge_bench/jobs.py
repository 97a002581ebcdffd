"""Small models as jobs."""

from pathlib import Path
from typing import Any

import onnx

from onnxfold.edge_bench.job import BenchJob, prepare_job
from testing.graph_builder import GraphBuilder


def small_model(seed: int = 0) -> onnx.ModelProto:
    """A convolution, pooling and a fully connected layer on 1 x 12 x 12 images."""
    g = GraphBuilder("net", seed, (1, 12, 12))
    x = g.relu(g.conv("x", 4))
    x = g.flatten(g.max_pool(x))
    g.output(g.gemm(x, 5))
    return g.build()


def small_job(folder: Path, **options: Any) -> BenchJob:
    """The model as a job with few repeats; files go into `folder`."""
    path = folder / "small.onnx"
    onnx.save(small_model(), path)
    work = folder / "work"
    work.mkdir()
    return prepare_job(path, work, **{"samples": 3, "warm_up": 1, "repeats": 5, **options})
