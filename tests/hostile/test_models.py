"""Models that are wrong in ways that onnx, numpy or TFLite's writer stumble over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.errors import ConfigError, ModelLoadError
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from tests.hostile.conftest import Command
from tests.hostile.sizes import network, numbers, scalar, weight

LENGTH = 8 * 27 * 4


def _einsum(equation: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "m"),
        helper.make_node("Einsum", ["a", "v"], ["y"], "e", equation=equation),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])
    graph = helper.make_graph(nodes, "g", [x], [y], [weight("w", 4, 7), weight("v", 7, 3)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "equation", ["i[j,jk->ik", "ij,jk-", "ij.,jk", ">ik", "A>i", "ij,jk->ik" + "-" * 10**5, "\x1b"]
)
def test_equations_that_are_none(equation: str) -> None:
    """onnx's shape inference never ends for some of these."""
    with pytest.raises(ModelLoadError, match="which is not an equation"):
        onnxfold.inspect(_einsum(equation))


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij , jk -> ki", "ij,jk", "...j,jk->...k", "Aj,jB->AB", "ij,jk->"])
def test_equations_that_are_some(equation: str) -> None:
    onnxfold.inspect(_einsum(equation))


def test_an_attribute_of_no_function() -> None:
    model = network()
    model.graph.node[0].attribute.add(name="group", ref_attr_name="g", type=onnx.AttributeProto.INT)
    with pytest.raises(ModelLoadError, match="is not in a function"):
        onnxfold.inspect(model)


def test_a_loop_without_trip_count_is_whole() -> None:
    out = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("more", "no_more")]
    step = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    state, result = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("v", "v_out"))
    body = helper.make_graph(
        [helper.make_node("Not", ["more"], ["no_more"]), helper.make_node("Identity", ["v"], ["v_out"])],
        "body", [step, out[0], state], [out[1], result],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["", "yes", "x"], ["t"], "loop", body=body)
    model = network(loop, image="t", constants=(numpy_helper.from_array(np.array(True), "yes"),))
    onnxfold.inspect(model)
    del loop.input[1]
    model = network(helper.make_node("Loop", [""], ["t"], "loop", body=body), image="t")
    with pytest.raises(ModelLoadError):
        onnxfold.inspect(model)


def test_texts_of_a_model_need_not_be_utf8() -> None:
    model = network(constants=(helper.make_tensor("labels", TensorProto.STRING, [2], [b"\xff\xfe", b"cat"]),))
    model.graph.output.append(helper.make_tensor_value_info("labels", TensorProto.STRING, [2]))
    kept = to_model(load(model)).graph.initializer
    assert list(next(t for t in kept if t.name == "labels").string_data) == [b"\xff\xfe", b"cat"]
    folded = onnxfold.fold(model, method="prune-l1", allocation="uniform", verify=False).model
    assert list(next(t for t in folded.graph.initializer if t.name == "labels").string_data) == [b"\xff\xfe", b"cat"]


def _external(location: str, **entries: object) -> onnx.ModelProto:
    model = network()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model


def _secret(folder: Path) -> Path:
    outside = folder / "secret.bin"
    outside.write_bytes(np.ones(LENGTH // 4, np.float32).tobytes())
    return outside


EXTERNAL: dict[str, tuple[Callable[[Path, Path], onnx.ModelProto], str]] = {
    "above the folder": (lambda inside, outside: _external("../secret.bin"), "outside the model's folder"),
    "absolute": (lambda inside, outside: _external(str(outside)), "outside the model's folder"),
    "a link out of the folder": (
        lambda inside, outside: (inside / "l").symlink_to(outside) or _external("l"), "outside the model's folder",
    ),
    "a loop of links": (lambda inside, outside: (inside / "l").symlink_to(inside / "l") or _external("l"), "'w1'"),
    "no name": (lambda inside, outside: _external(""), "outside the model's folder"),
    "missing": (lambda inside, outside: _external("w.bin"), "does not exist"),
    "a folder": (lambda inside, outside: _external("."), "does not exist"),
    "a FIFO": (lambda inside, outside: os.mkfifo(inside / "f") or _external("f"), "does not exist"),
    "a name too long": (lambda inside, outside: _external("n" * 300), "File name too long"),
    "a zero byte": (lambda inside, outside: _external("a\0b"), "not match its shape"),
    "a negative offset": (lambda inside, outside: _external("w.bin", offset=-1), "not match its shape"),
    "an endless offset": (lambda inside, outside: _external("w.bin", offset="9" * 5000), "not match its shape"),
    "digits of another script": (lambda inside, outside: _external("w.bin", offset="\u0663"), "not match its shape"),
    "another length": (lambda inside, outside: _external("w.bin", length=7), "not match its shape"),
    "the model itself": (lambda inside, outside: _external("m.onnx", length=LENGTH), "too short"),
}  # fmt: skip


@pytest.mark.parametrize("case", EXTERNAL)
def test_external_data_stay_in_the_folder(case: str, tmp_path: Path, command: Command) -> None:
    make, words = EXTERNAL[case]
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "m.onnx"
    path.write_bytes(make(folder, _secret(tmp_path)).SerializeToString())
    done = command("fold", path, tmp_path / "o.onnx", "--method", "prune-l1", "--allocation", "uniform", "--no-verify")
    assert done.code == 1
    assert words in done.line()
    assert not (tmp_path / "o.onnx").exists()


NO_MODELS = {
    "zip": b"PK\x03\x04" + bytes(100),
    "zeros": bytes(1000),
    "line feed": b"\n",
    "noise": np.random.default_rng(0).bytes(3000),
    "a tensor": weight("w", 3, 3).SerializeToString(),
    "a graph": network().graph.SerializeToString(),
    "text": "m\u00f6del\n".encode() * 9,
}


@pytest.mark.parametrize("case", NO_MODELS)
def test_files_that_are_no_models(case: str, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "通道\u202e é.onnx"
    path.write_bytes(NO_MODELS[case])
    for arguments in (
        ("inspect", path),
        ("fold", path, tmp_path / "o.onnx"),
        ("compare", path, path),
        ("export", path, tmp_path / "o.tflite"),
        ("bench", path, "--device", "host"),
    ):
        done = command(*arguments)
        assert done.code == 1
        assert "通道\\u202e é.onnx" in done.line()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def _split() -> onnx.ModelProto:
    model = network()
    model.graph.initializer.append(numbers("s", -3, 11))
    split = helper.make_node("Split", ["a", "s"], ["t", "u"], "split", axis=1)
    nodes = [model.graph.node[0], split, helper.make_node("Conv", ["t", "w3"], ["y"], "c2")]
    del model.graph.node[1:]
    model.graph.node.extend(nodes[1:])
    model.graph.initializer.append(weight("w3", 4, 3, 1, 1))
    return model


EXPORTS = {
    "stride": (network(strides=[2**62] * 2), "does not fit into 32 bits"),
    "pads": (network(pads=[2**31] * 4), "too large for TFLite"),
    "no samples": (network(size=(0, 3, 8, 8)), "a fixed batch of 0 samples"),
    "sizes of a split": (_split(), "contradict each other"),
}


@pytest.mark.parametrize("case", EXPORTS)
def test_numbers_that_tflite_does_not_have(case: str, tmp_path: Path, command: Command) -> None:
    model, words = EXPORTS[case]
    onnx.save(model, str(tmp_path / "m.onnx"))
    done = command("export", tmp_path / "m.onnx", tmp_path / "o.tflite")
    assert done.code == 1
    assert words in done.line()
    assert not (tmp_path / "o.tflite").exists()


def test_a_weight_that_is_an_output_is_exported(tmp_path: Path, command: Command) -> None:
    model = network()
    model.graph.output.append(helper.make_tensor_value_info("w1", TensorProto.FLOAT, [8, 3, 3, 3]))
    onnx.save(model, str(tmp_path / "m.onnx"))
    done = command("export", tmp_path / "m.onnx", tmp_path / "o.tflite")
    assert done.code == 0, done.err


def test_models_with_other_inputs_or_outputs_are_not_compared() -> None:
    other = network()
    other.graph.input[0].name = other.graph.node[0].input[0] = "z"
    with pytest.raises(ConfigError, match="has the input 'x'"):
        onnxfold.compare(network(), other)
    other = network()
    other.graph.output.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [None] * 4))
    with pytest.raises(ConfigError, match="outputs"):
        onnxfold.compare(network(), other)


def test_inputs_without_samples_and_without_axes() -> None:
    """A scalar beside an image: it is the same for all samples."""
    model = network(helper.make_node("Mul", ["x", "s"], ["t"]), image="t")
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, []))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    x = np.random.default_rng(0).standard_normal((600, 3, 8, 8)).astype(np.float32)
    found = onnxfold.compare(model, model, {"x": x, "s": np.float32(2.0)})
    assert found.outputs[0].relative_error == 0.0
    assert scalar("k", 3).dims == []
    assert numpy_helper.to_array(scalar("k", 3)) == 3
