"""Where the time goes: every kernel of onnxruntime's profile belongs to a layer."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from onnxfold.cli import cli
from onnxfold.errors import VerificationError
from onnxfold.graph.files.load import load
from onnxfold.graph.run.profiling import Kernel
from onnxfold.inputs.images.synthetic import noise_inputs
from onnxfold.inspection import inspect_model
from onnxfold.latency.layers import LatencyProfile, profile_layers
from testing import models
from testing.graph_builder import GraphBuilder


def _profile(model: onnx.ModelProto) -> LatencyProfile:
    view = load(model)
    return profile_layers(view, partial(noise_inputs, samples=1, seed=0, view=view))


def _blocked() -> onnx.ModelProto:
    """Return a residual block as wide as onnxruntime's blocked layout asks for, and a classifier."""
    g = GraphBuilder("blocked", 0, (3, 16, 16))
    h = g.relu(g.conv("x", 16, kernel=3))
    wide = g.relu(g.conv(h, 32, kernel=1))
    h = g.relu(g.add(h, g.conv(wide, 16, kernel=3)))
    g.output(g.head(h))
    return g.build()


def test_what_is_fused_belongs_to_its_convolution() -> None:
    """Relu, the addition of the shortcut and the change of layout are no layers of their own."""
    model = _blocked()
    found = _profile(model)
    convs = [node.name or node.output[0] for node in model.graph.node if node.op_type == "Conv"]
    assert [layer.name for layer in found.layers if layer.op_type == "Conv"] == convs
    assert not {"Relu", "Add", "ReorderInput", "ReorderOutput"} & {layer.op_type for layer in found.layers}
    assert [layer.shape for layer in found.layers if layer.op_type == "Conv"] == [
        (1, 16, 16, 16), (1, 32, 16, 16), (1, 16, 16, 16)
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["mlp_bn", "squeeze_excite", "matmul_bias_sequence", "concat_net", "nhwc_tail"])
def test_every_kernel_has_a_layer(name: str) -> None:
    found = _profile(models.ALL_MODELS[name](0))
    kernels = [kernel for layer in found.layers for kernel in layer.kernels]
    assert len(kernels) == len(set(kernels))
    assert all(layer.output for layer in found.layers)
    assert sum(layer.seconds for layer in found.layers) > 0.0
    assert found.seconds > 0.0


def test_a_matmul_has_its_bias_and_the_changes_of_shape_around_it() -> None:
    model = models.ALL_MODELS["matmul_bias_sequence"](0)
    for info in (*model.graph.input, *model.graph.output):  # only then onnxruntime makes Gemm of MatMul and Add
        info.type.tensor_type.shape.dim[0].dim_value = 1
    del model.graph.value_info[:]
    layers = _profile(model).layers
    assert [layer.op_type for layer in layers if layer.op_type != "Relu"] == ["MatMul"] * 3


def test_what_disturbs_most_runs_does_not_count() -> None:
    seconds = np.array([3e-6, 4e-3, 4e-6, 4e-3, 3e-6, 5e-3, 1.0, 4e-6, 4e-3])
    assert Kernel("k", "Conv", (), (), seconds).typical == pytest.approx(10e-6 / 3)


def test_inspect_prints_it_slowest_first(tmp_path: Path) -> None:
    onnx.save(_blocked(), tmp_path / "m.onnx")
    done = CliRunner().invoke(cli, ["inspect", str(tmp_path / "m.onnx"), "--latency", "--threads", "2"])
    assert done.exit_code == 0
    for words in ("where the time goes", "1x32x16x16", "share", "one run takes", "2 threads"):
        assert words in done.output
    done = CliRunner().invoke(cli, ["inspect", str(tmp_path / "m.onnx"), "--latency", "--json"])
    latency = json.loads(done.output)["latency"]
    assert [layer["op_type"] for layer in latency["layers"]][:3] == ["Conv"] * 3
    assert latency["threads"] == 1
    assert "latency" not in inspect_model(tmp_path / "m.onnx").to_dict()


def test_a_loop_without_end_has_no_latency() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Relu", ["h"], ["g"])],
        "body",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in
         (("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("h", TensorProto.FLOAT, [1, 4]))],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("g", 1, [1, 4])],
    )  # fmt: skip
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["start"], to=TensorProto.BOOL),
        helper.make_node("Loop", ["", "start", "x"], ["y"], body=body),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy")
    graph = helper.make_graph(nodes, "loop", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(VerificationError, match="Loop"):
        inspect_model(model, latency=True)
