"""Files in and out: round trips, external data, all or nothing, metadata, and what is refused."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.errors import ModelLoadError, ModelNotFoundError, ModelSaveError, UnsupportedModelError
from onnxfold.graph.files import save as save_module
from onnxfold.graph.files.load import load
from onnxfold.graph.files.provenance import add_run
from onnxfold.graph.files.save import save, to_model, weight_bytes
from onnxfold.graph.tensors import DerivedTensor, LazyTensor
from testing.compare import relative_difference
from testing.models import ALL_MODELS, mlp, random_input, run
from tests.export_forms import FORMS


def _write_external(model: onnx.ModelProto, path: Path, location: str = "") -> Path:
    copy = onnx.ModelProto.FromString(model.SerializeToString())  # onnx moves the weights out of what it is given
    onnx.save_model(
        copy, str(path), save_as_external_data=True, all_tensors_to_one_file=True,
        location=location or f"{path.name}.data", size_threshold=64,
    )  # fmt: skip
    return path


def _tensors(model: onnx.ModelProto) -> dict[str, bytes]:
    return {t.name: numpy_helper.to_array(t).tobytes() for t in model.graph.initializer}


# -- round trips ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_MODELS)
def test_load_and_to_model_lose_nothing(name: str) -> None:
    model = ALL_MODELS[name](0)
    model.doc_string, model.domain, model.model_version, model.graph.doc_string = "what it is", "tests", 3, "the graph"
    model.metadata_props.add(key="author", value="tests")
    model.graph.metadata_props.add(key="inner", value="too")
    again = to_model(load(model))
    assert again.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


@pytest.mark.parametrize("form", FORMS)
def test_round_trip_through_a_file(form: str, tmp_path: Path) -> None:
    model = FORMS[form](ALL_MODELS["flatten_conv"](0))
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model, source)
    save(load(source), target)
    assert onnx.load(target).SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


@pytest.mark.parametrize("external_in", [False, True])
@pytest.mark.parametrize("external_out", [False, True])
def test_external_data_in_and_out(external_in: bool, external_out: bool, tmp_path: Path) -> None:
    model = mlp(0, widths=(64, 48))
    source = tmp_path / "in" / "in.onnx"
    source.parent.mkdir()
    if external_in:
        _write_external(model, source, "weights.bin")
    else:
        onnx.save(model, source)
    result = onnxfold.fold(source, channel_ratio=0.5, save_as_external_data=external_out)
    target = tmp_path / "out" / "out.onnx"
    target.parent.mkdir()
    assert result.save(target) == target
    expected = ["out.onnx", "out.onnx.data"] if external_out else ["out.onnx"]
    assert sorted(p.name for p in target.parent.iterdir()) == expected
    onnx.checker.check_model(str(target), full_check=True)
    reference = onnxfold.fold(model, channel_ratio=0.5).model
    assert _tensors(onnx.load(target)) == _tensors(reference)
    target.rename(target.with_name("moved.onnx"))  # the data is named relative to the model
    assert _tensors(onnx.load(target.with_name("moved.onnx"))) == _tensors(reference)


def test_external_data_is_aligned_and_small_tensors_stay_inside(tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    save(load(mlp(0, widths=(64, 48))), path, external_data=True)
    stored = {t.name: t for t in onnx.load(path, load_external_data=False).graph.initializer}
    outside = {n for n, t in stored.items() if t.data_location == TensorProto.EXTERNAL}
    assert outside == {n for n, t in stored.items() if 4 * np.prod(t.dims) >= 1024}
    for name in outside:
        entries = {e.key: e.value for e in stored[name].external_data}
        assert entries["location"] == "out.onnx.data"
        assert int(entries["offset"]) % 4096 == 0
        assert int(entries["length"]) == 4 * np.prod(stored[name].dims)


TYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.int8, np.uint16, np.bool_, ml_dtypes.int4]


@pytest.mark.parametrize("stored", ["inside", "external"])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_survives(dtype: type, stored: str, tmp_path: Path) -> None:
    """Bytes of weights that are only passed on are the ones that were read, in types of any width."""
    model = mlp(0)
    values = (np.arange(61 * 67) % 7).reshape(61, 67).astype(dtype)
    model.graph.initializer.append(numpy_helper.from_array(values, "extra"))
    model.graph.node.append(helper.make_node("Shape", ["extra"], ["shape"]))
    model.graph.output.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [2]))
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    if stored == "external":
        _write_external(model, source)
    else:
        onnx.save(model, source)
    view = load(source)
    np.testing.assert_array_equal(view.weight("extra").astype(np.float64), values.astype(np.float64))
    assert view.weight("extra").dtype == np.dtype(dtype)
    view.set_weight("extra", view.weight("extra").copy())  # an edited weight is written, too
    for external in (False, True):
        for writer in (view, load(source)):
            save(writer, target, external_data=external)
            again = next(t for t in onnx.load(target).graph.initializer if t.name == "extra")
            np.testing.assert_array_equal(numpy_helper.to_array(again), values)
            assert again.data_type == helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


# -- all or nothing ------------------------------------------------------------------------------


class _StopError(RuntimeError):
    pass


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("existing", [False, True])
def test_nothing_is_left_behind_when_writing_fails(external: bool, existing: bool, tmp_path: Path) -> None:
    """An error in the middle leaves the folder as it was: no part, no model without data, no data without a model."""
    view = load(mlp(0, widths=(64, 48)))
    path = tmp_path / "out.onnx"
    if existing:
        for name in ("out.onnx", "out.onnx.data"):
            (tmp_path / name).write_text(f"the old {name}")

    def compute(values: np.ndarray) -> np.ndarray:
        raise _StopError

    old = view.weights["gemm_2_w"]
    assert isinstance(old, LazyTensor)
    view.put_weights({"gemm_2_w": DerivedTensor.of(old, old.shape, compute)})
    with pytest.raises(_StopError):
        save(view, path, external_data=external)
    expected = ["out.onnx", "out.onnx.data"] if existing else []
    assert sorted(p.name for p in tmp_path.iterdir()) == expected
    for name in expected:
        assert (tmp_path / name).read_text() == f"the old {name}"


@pytest.mark.parametrize("external", [False, True])
def test_nothing_is_left_behind_when_the_target_cannot_be_replaced(external: bool, tmp_path: Path) -> None:
    (tmp_path / "out.onnx").mkdir()
    with pytest.raises(ModelSaveError, match="is a folder"):
        save(load(mlp(0, widths=(64, 48))), tmp_path / "out.onnx", external_data=external)
    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelSaveError, match="create it first"):
        onnxfold.fold(mlp(0), channel_ratio=0.5).save(tmp_path / "missing" / "out.onnx")


def test_written_files_have_ordinary_permissions(tmp_path: Path) -> None:
    """Not those of a temporary file, which nobody else may read."""
    ordinary = tmp_path / "ordinary"
    ordinary.write_text("")
    path = onnxfold.fold(mlp(0), channel_ratio=0.5).save(tmp_path / "out.onnx")
    assert path.stat().st_mode == ordinary.stat().st_mode


def test_models_above_two_gigabytes_are_not_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The limit is lowered instead of a model being that large."""
    model = mlp(0, widths=(64, 48))
    result = onnxfold.fold(model, channel_ratio=0.25, verify=False)
    expected = _tensors(result.model)
    monkeypatch.setattr(save_module, "PROTOBUF_LIMIT", 1000)
    assert weight_bytes(load(model)) > 1000
    with pytest.raises(UnsupportedModelError, match="save it to a path"):
        _ = result.model
    path = result.save(tmp_path / "out.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data"]
    assert _tensors(onnx.load(path)) == expected


# -- metadata ------------------------------------------------------------------------------------


def test_metadata_survives_and_gains_a_provenance_entry() -> None:
    model = mlp(0)
    model.metadata_props.add(key="author", value="somebody")
    once = onnxfold.fold(model, channel_ratio=0.25, seed=7)
    props = {p.key: p.value for p in once.model.metadata_props}
    assert props["author"] == "somebody"
    (entry,) = json.loads(props["onnxfold"])
    assert entry["version"] == onnxfold.__version__
    assert entry["sparsity"] == pytest.approx(once.report.sparsity, abs=1e-6)
    assert entry["config"]["channel_ratio"] == 0.25
    assert entry["config"]["seed"] == 7
    assert once.model.producer_name == "tests"
    assert not model.metadata_props[1:]

    twice = {p.key: p.value for p in onnxfold.fold(once.model, channel_ratio=0.25).model.metadata_props}
    first, second = json.loads(twice["onnxfold"])
    assert first == entry
    assert second["config"]["seed"] == 0
    assert list(twice) == ["author", "onnxfold"]


def test_provenance_grows_by_one_run_a_fold() -> None:
    model = mlp(0)
    sizes = []
    for _ in range(12):
        add_run(model, {"version": "0.1.0", "config": {"seed": 0}, "sparsity": 0.5})
        sizes.append(len(model.metadata_props[0].value))
    assert len(set(np.diff(sizes).tolist())) == 1


@pytest.mark.parametrize("text", ["no json", "[" * 100_000, "5", '{"a": 1}', "[1, 2]"])
def test_provenance_that_somebody_else_wrote_is_kept(text: str) -> None:
    model = mlp(0)
    model.metadata_props.add(key="onnxfold", value=text)
    add_run(model, {"sparsity": 0.4})
    runs = json.loads(model.metadata_props[0].value)
    assert runs[-1] == {"sparsity": 0.4}
    assert runs[0]["unknown"] in text


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "sub/../../secret.bin"])
def test_external_data_outside_the_folder_is_refused(location: str, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(bytes(10**5))
    path = _write_external(mlp(0, widths=(64, 48)), inside / "model.onnx")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelLoadError, match="outside the model's folder"):
        onnxfold.fold(path, channel_ratio=0.5)


def test_external_data_that_is_missing_or_short(tmp_path: Path) -> None:
    path = _write_external(mlp(0, widths=(64, 48)), tmp_path / "model.onnx")
    data = tmp_path / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match="too short for tensor"):
        onnxfold.fold(path, channel_ratio=0.5)
    data.unlink()
    with pytest.raises(ModelLoadError, match="put it beside the model"):
        onnxfold.fold(path, channel_ratio=0.5)
    with pytest.raises(ModelLoadError, match="pass the path"):
        onnxfold.fold(onnx.load(path, load_external_data=False), channel_ratio=0.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "check the path"),
        (b"", "no graph"),
        (b"this is text", "not an ONNX model"),
        (mlp(0).SerializeToString()[:-50], "not an ONNX model|broken|truncated"),
    ],
)
def test_files_that_are_no_models(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelLoadError if content is not None else ModelNotFoundError, match=message):
        load(path)


def test_old_and_future_operator_sets() -> None:
    model = mlp(0)
    model.opset_import[0].version = 6
    with pytest.raises(UnsupportedModelError, match="convert_version"):
        load(model)
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    with pytest.raises(UnsupportedModelError, match="upgrade onnx"):
        load(model)


def test_subgraph_weights_in_external_files_travel_along(tmp_path: Path) -> None:
    """A body's own weights may lie in the external file as well; the output must not point back to it."""
    source = tmp_path / "in" / "in.onnx"
    source.parent.mkdir()
    model = mlp(0, widths=(64, 48))
    y = model.graph.output[0].name
    model.graph.node[-1].output[0] = "logits"
    rng = np.random.default_rng(0)
    branches = []
    for name in ("then", "else"):
        weight = numpy_helper.from_array(rng.standard_normal((5, 5)).astype(np.float32), f"{name}_w")
        info = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, ["batch", 5])
        body = [helper.make_node("MatMul", ["logits", f"{name}_w"], [f"{name}_out"])]
        branches.append(helper.make_graph(body, name, [], [info], [weight]))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0), "threshold"))
    model.graph.node.extend(
        [
            helper.make_node("ReduceSum", ["logits"], ["total"], keepdims=0),
            helper.make_node("Greater", ["total", "threshold"], ["positive"]),
            helper.make_node("If", ["positive"], [y], then_branch=branches[0], else_branch=branches[1]),
        ]
    )
    _write_external(model, source)
    inner = onnx.load(source, load_external_data=False).graph.node[-1].attribute[0].g.initializer[0]
    assert inner.data_location == TensorProto.EXTERNAL
    feeds = random_input(model, 0)
    for external in (False, True):
        target = tmp_path / f"out{external}" / "out.onnx"
        target.parent.mkdir()
        onnxfold.fold(source, channel_ratio=0.25).save(target, save_as_external_data=external)
        folded = onnx.load(target)
        reference = onnxfold.fold(model, channel_ratio=0.25).model
        assert relative_difference(run(reference, feeds), run(folded, feeds)) <= 1e-6
