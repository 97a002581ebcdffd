"""Small models as jobs on boards."""

from pathlib import Path
from typing import Any

import onnx

from onnxfold.edge_bench.job import BenchJob, prepare_job
from testing.graph_builder import GraphBuilder


def small_model(seed: int = 0, width: int = 4) -> onnx.ModelProto:
    """A normalised convolution, pooling and a fully connected layer on 2 x 8 x 8 images."""
    g = GraphBuilder("net", seed, (2, 8, 8))
    x = g.relu(g.conv_bn("x", width))
    g.output(g.gemm(g.flatten(g.max_pool(x)), 5))
    return g.build()


def job_of(model: onnx.ModelProto, folder: Path, **options: Any) -> BenchJob:
    """A model as a job; files go into `folder`."""
    path = folder / "small.onnx"
    onnx.save(model, path)
    work = folder / "work"
    work.mkdir()
    return prepare_job(path, work, **{"samples": 3, "warm_up": 1, "repeats": 5, **options})
