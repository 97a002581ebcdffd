"""What is read is never written, and two outputs are never one file: refused before any work, with code 2."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold as package
from onnxfold.budget import devices
from onnxfold.errors import ConfigError
from onnxfold.export import export_model
from onnxfold.export.firmware import write_project
from onnxfold.graph.files.model_files import external_files
from testing.models import mlp
from tests.files.command import FAST, onnxfold, snapshot, write_model, write_samples

READ = "files that are read are never overwritten"
TWICE = "are the same file: give two paths"
ENDING = "the name must end in"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Models with their weights beside them, samples, a device, and other names of all of these."""
    write_model(tmp_path / "in.onnx", weights_in="w.bin")
    write_model(tmp_path / "json.onnx", weights_in="w.json")
    write_model(tmp_path / "beside.onnx", weights_in="o.onnx.data")
    write_model(tmp_path / "model.onnx.data")
    write_samples(tmp_path / "samples.npz")
    write_samples(tmp_path / "samples.json")
    profile = Path(devices.__file__).with_suffix("") / "esp-eye.toml"
    (tmp_path / "board.toml").write_bytes(profile.read_bytes())
    (tmp_path / "link.onnx").symlink_to("in.onnx")
    (tmp_path / "link.json").symlink_to("w.bin")
    (tmp_path / "hard.html").hardlink_to(tmp_path / "w.bin")
    (tmp_path / "here").symlink_to(".")
    return tmp_path


FOLDS = {
    "OUT on the weights": ("in.onnx w.bin", READ),
    "OUT on the model": ("in.onnx in.onnx", READ),
    "OUT on the model by a link": ("in.onnx link.onnx", READ),
    "OUT on the model by another way": ("in.onnx here/in.onnx", READ),
    "OUT on the model by a hard link": ("in.onnx hard.html", READ),
    "OUT.data on the weights": ("beside.onnx o.onnx --save-as-external-data", READ),
    "OUT.data on the model": ("model.onnx.data model.onnx --save-as-external-data", READ),
    "OUT.data on the samples": ("in.onnx s.onnx --save-as-external-data --calibration s.onnx.data", READ),
    "OUT on the samples": ("in.onnx samples.npz --calibration samples.npz", READ),
    "OUT on the inputs": ("in.onnx samples.npz --inputs samples.npz", READ),
    "OUT on the device": ("in.onnx board.toml --device board.toml", READ),
    "report on the weights": ("in.onnx o.onnx --report w.bin", ENDING),
    "report on the weights, by their ending": ("json.onnx o.onnx --report w.json", READ),
    "report on the weights by a link": ("in.onnx o.onnx --report link.json", READ),
    "report on the weights by a hard link": ("in.onnx o.onnx --report hard.html", READ),
    "report on the model": ("in.onnx o.onnx --report in.onnx", ENDING),
    "report on the samples": ("in.onnx o.onnx --calibration samples.json --report samples.json", READ),
    "report on OUT": ("in.onnx o.onnx --report o.onnx", ENDING),
    "report on OUT, by its ending": ("in.onnx o.json --report o.json", TWICE),
    "report on OUT by another way": ("in.onnx o.json --report here/o.json", TWICE),
    "report on OUT.data": ("in.onnx o --save-as-external-data --report o.data", ENDING),
    "images on OUT": ("in.onnx o.onnx --save-inputs o.onnx", ENDING),
    "images on OUT, by their ending": ("in.onnx o.png --save-inputs o.png", TWICE),
    "images as JPEG": ("in.onnx o.onnx --save-inputs i.jpg", ENDING),
    "report as text": ("in.onnx o.onnx --report r.txt", ENDING),
}
BENCHES = {
    "JSON on the model": ("in.onnx --json in.onnx", ENDING),
    "HTML on the model": ("in.onnx --html in.onnx", ENDING),
    "JSON on the weights": ("in.onnx --json w.bin", ENDING),
    "JSON on the weights, by their ending": ("json.onnx --json w.json", READ),
    "HTML on the weights by a hard link": ("in.onnx --html hard.html", READ),
    "JSON on the second model's weights": ("in.onnx json.onnx --json w.json", READ),
    "two outputs": ("in.onnx --json r.json --html here/r.json", ENDING),
}
EXPORTS = {
    "OUT on the model": ("in.onnx in.onnx", READ),
    "OUT on the weights": ("in.onnx w.bin", READ),
    "report on the weights": ("json.onnx o.tflite --report w.json", READ),
    "report on OUT": ("in.onnx o.json --report o.json", TWICE),
    "report as HTML": ("in.onnx o.tflite --report r.html", ENDING),
    "report in the project": ("in.onnx project --format arduino --report project/r.json", "does not exist"),
    "report on the project": ("in.onnx o.json --format arduino --report o.json", TWICE),
}
CASES = [(c, n) for c, cases in (("fold", FOLDS), ("bench", BENCHES), ("export", EXPORTS)) for n in cases]


@pytest.mark.parametrize(("command", "case"), CASES)
def test_nothing_that_is_read_is_written(
    command: str, case: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, words = {"fold": FOLDS, "bench": BENCHES, "export": EXPORTS}[command][case]
    write_samples(folder / "s.onnx.data")
    before = snapshot(folder)
    monkeypatch.chdir(folder)
    done = onnxfold(command, *line.split())
    assert done.code == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert snapshot(folder) == before


def test_weights_in_bodies_constants_and_functions_are_read(tmp_path: Path) -> None:
    """Every tensor of a model may lie in a file of its own, wherever it stands."""

    def tensor(location: str) -> TensorProto:
        made = numpy_helper.from_array(np.ones(300, np.float32), location)
        made.ClearField("raw_data")
        made.data_location = TensorProto.EXTERNAL
        made.external_data.add(key="location", value=location)
        return made

    model = mlp(0, widths=(64, 48))
    info = helper.make_tensor_value_info("b", TensorProto.FLOAT, [300])
    constant = helper.make_node("Constant", [], ["b"], value=tensor("constant.bin"))
    body = helper.make_graph([constant], "body", [], [info], [tensor("body.bin")])
    model.graph.node.append(helper.make_node("If", ["c"], ["r"], then_branch=body, else_branch=body))
    inner = helper.make_node("Constant", [], ["f"], value=tensor("function.bin"))
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("tests", "F", [], ["f"], [inner], opsets))
    values, indices = tensor("values.bin"), tensor("indices.bin")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [300]))
    path = tmp_path / "in.onnx"
    path.write_bytes(model.SerializeToString())
    names = {"constant.bin", "body.bin", "function.bin", "values.bin", "indices.bin"}
    assert {p.name for p in external_files(path)} == names
    for name in names:
        (tmp_path / name).write_bytes(b"weights")
        done = onnxfold("fold", path, tmp_path / name)
        assert (done.code, READ in done.stderr) == (2, True)
        assert (tmp_path / name).read_bytes() == b"weights"


def test_python_obeys_the_same_rules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    result = package.fold("in.onnx", channel_ratio=0.5, method="prune-l1", verify=False, calibration="samples.npz")
    beside = package.fold("beside.onnx", channel_ratio=0.5, method="prune-l1", verify=False)
    before = snapshot(folder)
    for where in (folder, folder.parent):
        monkeypatch.chdir(where)  # paths mean what they meant when the fold ran
        for name in ("in.onnx", "link.onnx", "w.bin", "hard.html", "samples.npz"):
            with pytest.raises(ConfigError, match=READ):
                result.save(folder / name)
        with pytest.raises(ConfigError, match=READ):
            beside.save(folder / "o.onnx", save_as_external_data=True)
    with pytest.raises(ConfigError, match=READ):
        export_model(folder / "in.onnx", folder / "w.bin")
    with pytest.raises(ConfigError, match="not an empty folder"):
        write_project(folder / "in.onnx", folder / "w.bin", "qemu")
    assert snapshot(folder) == before


def test_a_model_is_not_saved_over_the_weights_that_it_still_reads(folder: Path) -> None:
    """Also where another model of that name, which goes, had them, and where nobody asked for external data."""
    result = package.fold(folder / "beside.onnx", channel_ratio=0.5, method="prune-l1", verify=False)
    expected = {t.name: t.raw_data for t in result.model.graph.initializer}
    package.fold(folder / "in.onnx", channel_ratio=0.25, method="prune-l1", verify=False).save(folder / "o.onnx")
    result.save(folder / "o.onnx")
    assert (folder / "o.onnx.data").exists()
    assert {t.name: t.raw_data for t in onnx.load(folder / "o.onnx").graph.initializer} == expected
    assert {t.name: t.raw_data for t in result.model.graph.initializer} == expected


def test_redirected_output_is_not_replaced(folder: Path) -> None:
    """Where the shell sends what is printed, no output may go."""
    with (folder / "log.json").open("w") as log:
        kept = os.dup(1)
        os.dup2(log.fileno(), 1)
        try:
            done = onnxfold("fold", folder / "in.onnx", folder / "o.onnx", *FAST, "--report", folder / "log.json")
        finally:
            os.dup2(kept, 1)
            os.close(kept)
    assert done.code == 2
    assert "standard output or error goes to" in done.stderr
    assert not (folder / "o.onnx").exists()
