"""Whole networks through the writer: outputs, layouts, sizes, interface."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxfold import fold
from onnxfold.errors import ConfigError, ExportError
from onnxfold.export import export_model, to_tflite
from onnxfold.export.api import open_model
from onnxfold.export.fusion import PREPARE
from onnxfold.export.tflite.convert import Converted, convert
from testing.graph_builder import GraphBuilder
from testing.zoo import export as zoo_export
from testing.zoo import scalable

pytest.importorskip("ai_edge_litert")

from onnxfold.export.parity import TFLiteInterpreter


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks gain nothing from threads, and lose a lot where others want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


DATA = Path(__file__).resolve().parents[2] / "onnxfold" / "data"


def converted(model: onnx.ModelProto | Path) -> Converted:
    view = open_model(model)
    PREPARE(view)
    return convert(view)


def chain(*ops: str, seed: int = 0) -> onnx.ModelProto:
    """A small convolutional network with the given kinds of layers."""
    g = GraphBuilder("net", seed, (3, 12, 12))
    x = "x"
    for op in ops:
        x = getattr(g, op)(x, 8) if op in ("conv", "conv_bn", "conv_transpose", "gemm") else getattr(g, op)(x)
    g.output(x)
    return g.build()


NETS = {
    "resnet18": lambda: scalable.resnet18(width=4, input_size=16),
    "mobilenet_v2": lambda: scalable.mobilenet_v2(width_mult=0.1, input_size=32),
    "vgg11_bn": lambda: scalable.vgg11_bn(width=4),
    "squeeze_excite": lambda: scalable.squeeze_excite_net(width=8),
    "autoencoder": lambda: scalable.autoencoder(width=4),
    "mlp_bn": scalable.mlp_bn,
}


@pytest.mark.parametrize("form", ["legacy-bn", "legacy-fused"])
@pytest.mark.parametrize("name", NETS)
def test_networks_keep_their_outputs_without_a_transpose(name: str, form: zoo_export.Form, tmp_path: Path) -> None:
    net = scalable.seeded(NETS[name](), 0)
    path = zoo_export.export(net, scalable.example_input(net), tmp_path / "net.onnx", form)
    report = export_model(path, tmp_path / "net.tflite")
    assert report.parity["max_rel_error"] <= 1e-4
    assert report.parity["samples"] == 16
    assert "TRANSPOSE" not in report.operators


def test_folded_network_has_the_same_operators(tmp_path: Path) -> None:
    model = chain("conv_bn", "relu", "conv_bn", "relu", "flatten", "gemm")
    folded = fold(model, 0.4, method="fold-naive").save(tmp_path / "folded.onnx")
    dense = export_model(model, tmp_path / "dense.tflite")
    small = export_model(folded, tmp_path / "folded.tflite")
    assert small.operators == dense.operators
    assert small.size_bytes < dense.size_bytes


def test_size_is_that_of_the_weights(tmp_path: Path) -> None:
    weights = sum(
        int(np.prod(t.dims)) for t in onnx.load(DATA / "lenet5_2x.onnx").graph.initializer if t.data_type == 1
    )
    size = export_model(DATA / "lenet5_2x.onnx", tmp_path / "net.tflite").size_bytes
    assert abs(size - 4 * weights) <= 0.01 * 4 * weights + 16384


def test_equal_weights_are_stored_once() -> None:
    def network(same: bool) -> onnx.ModelProto:
        g = GraphBuilder("net", 0, (8, 6, 6))
        first = g.conv("x", 8)
        g.output(g.conv(first, 8))
        model = g.build()
        if same:
            by_name = {t.name: t for t in model.graph.initializer}
            for kind in "wb":
                by_name[f"conv_1_{kind}"].CopyFrom(
                    numpy_helper.from_array(numpy_helper.to_array(by_name[f"conv_0_{kind}"]), f"conv_1_{kind}")
                )
        return model

    sizes = [len(converted(network(same)).to_bytes("")) for same in (False, True)]
    assert sizes[0] - sizes[1] >= 8 * 8 * 9 * 4


def test_batch_norm_activation_and_flatten_leave_no_operator() -> None:
    found = converted(chain("conv_bn", "relu", "max_pool", "conv_bn", "relu6", "flatten", "gemm"))
    assert found.operators == {"CONV_2D": 2, "MAX_POOL_2D": 1, "FULLY_CONNECTED": 1}


def test_flattened_map_permutes_weights_on_both_sides(tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (3, 4, 4))
    hidden = g.relu(g.gemm(g.flatten(g.conv("x", 5)), 3 * 4 * 4))
    shape = g.constant("shape", np.array([-1, 3, 4, 4], np.int64))
    g.output(g.conv(g.node("Reshape", [hidden, shape], (3, 4, 4)), 2))
    report = export_model(g.build(), tmp_path / "net.tflite")
    assert "TRANSPOSE" not in report.operators


def test_interface_and_layouts_are_stated(tmp_path: Path) -> None:
    path = to_tflite(chain("conv", "relu"), tmp_path / "net.tflite")
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    content = path.read_bytes()
    assert content[4:8] == b"TFL3"
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    (notes,) = [m for m in model.metadata if m.name == b"onnxfold"]
    stated = json.loads(bytes(model.buffers[notes.buffer].data))
    assert stated["inputs"]["x"]["layout"] == "NHWC"
    assert stated["outputs"]["y"]["axes"] == [0, 2, 3, 1]
    assert TFLiteInterpreter(path).shapes() == {"inputs": {"x": (1, 12, 12, 3)}, "outputs": {"y": (1, 12, 12, 8)}}


def test_buffers_are_aligned(tmp_path: Path) -> None:
    content = to_tflite(chain("conv", "flatten", "gemm"), tmp_path / "net.tflite").read_bytes()
    model = pytest.importorskip("ai_edge_litert.schema_py_generated").ModelT.InitFromPackedBuf(content, 0)
    payloads = [bytes(b.data) for b in model.buffers if b.data is not None and len(b.data) >= 64]
    assert payloads
    assert all(content.index(p) % 16 == 0 for p in payloads)


@pytest.mark.parametrize("keep", [False, True])
def test_inputs_in_either_order(keep: bool, tmp_path: Path) -> None:
    report = export_model(chain("conv", "relu"), tmp_path / "net.tflite", keep_nchw_inputs=keep)
    assert report.inputs == {"x": "NCHW" if keep else "NHWC"}
    assert TFLiteInterpreter(tmp_path / "net.tflite").shapes()["inputs"]["x"] == (
        (1, 3, 12, 12) if keep else (1, 12, 12, 3)
    )


@pytest.mark.parametrize("batch", [1, 5])
def test_batch_is_free(batch: int, tmp_path: Path) -> None:
    path = to_tflite(chain("conv", "conv_transpose", "flatten", "gemm"), tmp_path / "net.tflite")
    found = TFLiteInterpreter(path).run({"x": np.zeros((batch, 12, 12, 3), np.float32)})
    assert found["y"].shape == (batch, 8)


def test_an_output_that_is_the_input(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert export_model(model, tmp_path / "net.tflite").parity["max_abs_error"] == 0.0


def test_unknown_operator_names_node_and_reason(tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (4, 6))
    g.output(g.node("Trilu", ["x"], (4, 6), "the_node"))
    with pytest.raises(ExportError, match="Trilu 'the_node': no converter exists") as caught:
        export_model(g.build(), tmp_path / "net.tflite")
    assert (caught.value.node, caught.value.op_type) == ("the_node", "Trilu")
    assert list(tmp_path.iterdir()) == []


def test_free_sizes_get_usual_ones_and_can_be_given(tmp_path: Path) -> None:
    model = chain("conv", "relu")
    for info in (*model.graph.input, *model.graph.output):
        for axis, symbol in ((2, "height"), (3, "width")):
            info.type.tensor_type.shape.dim[axis].dim_param = symbol
    report = export_model(model, tmp_path / "net.tflite")
    assert any("fixed to x:?,3,224,224: --input-shapes" in note for note in report.notes)
    assert report.parity["max_rel_error"] <= 1e-4
    report = export_model(model, tmp_path / "net.tflite", input_shapes={"x": (2, 3, 12, 12)})
    assert report.parity["max_rel_error"] <= 1e-4
    assert not any("fixed to" in note for note in report.notes)


def test_a_batch_is_one_where_a_state_lets_no_more_pass(tmp_path: Path) -> None:
    x, state = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", ["n", 4]), ("state", [1, 4])))
    joined = helper.make_node("Concat", ["x", "state"], ["y"], axis=1)
    y = helper.make_tensor_value_info("y", 1, ["n", 8])
    graph = helper.make_graph([joined], "net", [x, state], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = export_model(model, tmp_path / "net.tflite")
    assert any("fixed to x:1,4:" in note for note in report.notes)


def test_a_length_that_leaves_no_result_is_not_taken(tmp_path: Path) -> None:
    g = GraphBuilder("windows", 0, (1, 100))
    wide = g.node("Conv", ["x", g.constant("w", g.normal(4, 1, 100))], (4, 1), "windows", strides=[10])
    g.output(wide)
    model = g.build()
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[2].dim_param = f"length of {info.name}"
    report = export_model(model, tmp_path / "net.tflite")
    assert any("fixed to x:?,1,256: --input-shapes" in note for note in report.notes)


def test_a_batch_that_is_computed_with_becomes_1(tmp_path: Path) -> None:
    g = GraphBuilder("net", 0, (4, 6))
    sizes = g.node("Shape", ["x"], (3,), "sizes")
    ones = g.node("ConstantOfShape", [sizes], (4, 6), "ones")
    g.output(g.node("Add", ["x", ones], (4, 6), "sum"))
    model = g.build()
    assert not model.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value")
    report = export_model(model, tmp_path / "net.tflite")
    assert any("fixed to x:1,4,6: --input-shapes" in note for note in report.notes)
    assert report.parity["max_rel_error"] <= 1e-4


def test_the_model_is_left_untouched(tmp_path: Path) -> None:
    model = chain("conv_bn", "relu")
    before = model.SerializeToString(deterministic=True)
    export_model(model, tmp_path / "net.tflite")
    assert model.SerializeToString(deterministic=True) == before


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    for options in ({"backend": "none"}, {"dtype": "int3"}, {"output_format": "elf"}):
        with pytest.raises(ConfigError, match="is unknown"):
            export_model(chain("conv"), tmp_path / "net.tflite", **options)


def test_operators_of_early_onnx(tmp_path: Path) -> None:
    g = GraphBuilder("old", 0, (3, 12, 14), opset=9)
    scaled = g.node("ImageScaler", ["x"], (3, 12, 14), scale=0.5, bias=[0.1, -0.2, 0.3])
    part = g.node("Crop", [g.relu(g.conv(scaled, 4))], (4, 9, 10), border=[1, 2, 3, 1])
    g.output(g.head(g.node("Affine", [part], (4, 9, 10), alpha=2.0, beta=-0.5)))
    assert export_model(g.build(), tmp_path / "old.tflite").parity["samples"] > 0


def test_nearest_coordinates_of_tensorflow(tmp_path: Path) -> None:
    g = GraphBuilder("resize", 0, (2, 5, 4))
    how = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor", "mode": "nearest"}
    scales = g.constant("scales", np.array([1.0, 1.0, 0.6, 2.0], np.float32))
    g.output(g.node("Resize", ["x", "", scales], (2, 3, 8), **how))
    assert export_model(g.build(), tmp_path / "resize.tflite").parity["max_rel_error"] <= 1e-6


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_a_bias_that_is_computed_is_refused(operator: str, tmp_path: Path) -> None:
    g = GraphBuilder("bias", 0, (3, 8, 8))
    bias = g.node("ReduceMean", ["x"], (3,), "bias", axes=[0, 2, 3], keepdims=0)
    weight = g.constant("w", np.ones((3, 3, 1, 1), np.float32))
    g.output(g.node(operator, ["x", weight, bias], (3, 8, 8)))
    with pytest.raises(ExportError, match="its bias is computed at run time"):
        export_model(g.build(), tmp_path / "bias.tflite")


@pytest.mark.parametrize("places", ["constant", "computed"])
def test_what_is_written_to_places(places: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sums"], keepdims=0, axes=[1]),
        helper.make_node("TopK", ["sums", "three"], ["largest", "row"]),
        helper.make_node("Unsqueeze", ["row"], ["computed"], axes=[1]),
        helper.make_node("Gather", ["x", "some"], ["updates"]),
        helper.make_node("ScatterND", ["x", places, "updates"], ["y"], "scatter"),
    ]
    weights = {"three": np.array([3]), "some": np.array([0, 2, 1]), "constant": np.array([[-1], [3], [1]])}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [6, 4]) for name in "xy")
    initializers = [numpy_helper.from_array(values, name) for name, values in weights.items()]
    graph = helper.make_graph(nodes, "places", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    report = export_model(model, tmp_path / "places.tflite")
    assert report.parity["max_rel_error"] == 0.0
    assert report.operators["SCATTER_ND"] == (1 if places == "constant" else 2)
