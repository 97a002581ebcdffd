"""Models that both revisions fold: built once, by this revision, and written as files."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxfold.data
from testing.graph_builder import GraphBuilder
from testing.models import ALL_MODELS, residual
from testing.random_graphs.generate import random_graph
from testing.random_graphs.run import draw_feeds

_SAMPLES = 24


def write_models(folder: Path, seeds: Sequence[int], more: Path | None = None) -> list[str]:
    """Write ``NAME.onnx`` and ``NAME.npz``, samples to run it on, for every model; return the names.

    Parameters
    ----------
    folder : Path
        An empty folder.
    seeds : sequence of int
        Seeds of random graphs.
    more : Path, optional
        A folder whose models are taken, too.
    """
    bundled = Path(onnxfold.data.__file__).parent / "lenet5_2x.onnx"
    built: dict[str, Callable[[], onnx.ModelProto]] = {
        **{name: partial(build, 0) for name, build in ALL_MODELS.items()},
        "wide_residual": partial(residual, 0, width=24),
        "attention": attention,
        "bodies": bodies,
        "float16": lambda: as_float16(ALL_MODELS["residual"](1)),
        **{f"random_{seed}": partial(random_graph, seed) for seed in seeds},
        **{
            path.stem: partial(onnx.load, str(path)) for path in (bundled, *sorted(more.glob("*.onnx") if more else ()))
        },
    }
    for name, build in built.items():
        _write(build(), folder / f"{name}.onnx")
    _write(ALL_MODELS["residual"](2), folder / "external.onnx", external="external.weights")
    return [*built, "external"]


def _write(model: onnx.ModelProto, path: Path, external: str | None = None) -> None:
    samples: dict[str, Any] = draw_feeds(model, seed=7, batch=_SAMPLES)
    np.savez(path.with_suffix(".npz"), **samples)
    onnx.save(model, str(path), save_as_external_data=bool(external), location=external, size_threshold=0)


def attention() -> onnx.ModelProto:
    """One attention head and a feed-forward block, both residual, on [N, 4, 8]."""
    g = GraphBuilder("attention", 3, (4, 8))
    x = g.matmul_add("x", 8)
    query, key, value = (g.matmul_add(x, 6) for _ in range(3))
    turned = g.node("Transpose", [key], (6, 4), perm=[0, 2, 1])
    scores = g.node("Softmax", [g.node("MatMul", [query, turned], (4, 4))], (4, 4), axis=-1)
    x = g.add(x, g.matmul_add(g.node("MatMul", [scores, value], (4, 6)), 8))
    x = g.add(x, g.matmul_add(g.relu(g.matmul_add(x, 16)), 8))
    g.output(g.matmul_add(x, 5))
    return g.build()


def bodies() -> onnx.ModelProto:
    """A layer pair in the graph, then one in each branch of an If, then one in the body of a Loop."""
    random = np.random.default_rng(4)
    outside: list[onnx.TensorProto] = []

    def pair(prefix: str, x: str, y: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
        shapes = {f"{prefix}_w1": (4, 8), f"{prefix}_w2": (8, 4)}
        weights = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
        return [
            helper.make_node("MatMul", [x, f"{prefix}_w1"], [f"{prefix}_a"], f"{prefix}_up"),
            helper.make_node("Relu", [f"{prefix}_a"], [f"{prefix}_r"], f"{prefix}_relu"),
            helper.make_node("MatMul", [f"{prefix}_r", f"{prefix}_w2"], [y], f"{prefix}_down"),
        ], weights

    def info(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int | None] = (None, 4)) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    branches = {}
    for branch in ("then", "else"):
        nodes, weights = pair(branch, "h", f"{branch}_y")
        branches[f"{branch}_branch"] = helper.make_graph(nodes, branch, [], [info(f"{branch}_y")], weights)
    nodes, weights = pair("loop", "state", "next")
    nodes.append(helper.make_node("Identity", ["go"], ["going"], "loop_going"))
    arguments = [info("step", TensorProto.INT64, ()), info("go", TensorProto.BOOL, ()), info("state")]
    body = helper.make_graph(nodes, "body", arguments, [info("going", TensorProto.BOOL, ()), info("next")], weights)
    nodes, weights = pair("main", "x", "h")
    outside += [*weights, numpy_helper.from_array(np.array(2, np.int64), "trips")]
    nodes.append(helper.make_node("If", ["flag"], ["chosen"], "choice", **branches))
    nodes.append(helper.make_node("Loop", ["trips", "", "chosen"], ["y"], "repeat", body=body))
    graph = helper.make_graph(nodes, "bodies", [info("flag", TensorProto.BOOL, ()), info("x")], [info("y")], outside)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def as_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with float16 in place of float32 everywhere."""
    for weight in model.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), weight.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model
