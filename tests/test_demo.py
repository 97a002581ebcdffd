"""The demo: what a newcomer sees first."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

from onnxfold import api
from onnxfold.cli import cli
from onnxfold.commands.run_demo import SPARSITIES, bundled_test_images, run_demo
from onnxfold.errors import ConfigError, ModelSaveError
from onnxfold.graph.files.provenance import add_run
from onnxfold.inputs.given_inputs import load_arrays
from tests.files.command import files_of_at_most


@pytest.mark.long
def test_demo_shows_honest_numbers(tmp_path: Path) -> None:
    results = run_demo(tmp_path / "demo", "lenet5_2x")
    reached, accuracy = zip(*results, strict=True)
    assert accuracy[0] > 0.93  # 93.28 % on the 10,000 images, see onnxfold/data/training_log.json
    assert all(abs(r - s) <= 0.01 for r, s in zip(reached[1:], SPARSITIES, strict=True))
    assert accuracy[1] > 0.92
    assert accuracy[2] > 0.87
    files = sorted((tmp_path / "demo").glob("*.onnx"))
    assert len(files) == len(SPARSITIES)
    for path in files:
        onnx.checker.check_model(str(path), full_check=True)


def _demo(*args: object) -> Result:
    return CliRunner().invoke(cli, ["demo", "--model", "lenet5", *map(str, args)])


def test_a_copy_of_the_demo_is_what_data_takes(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert _demo("--copy", folder).exit_code == 0
    model, data = folder / "lenet5.onnx", folder / "fashion_mnist_test.npz"
    assert model.read_bytes() == (files("onnxfold.data") / "lenet5.onnx").read_bytes()
    assert "MIT License" in (folder / "README.md").read_text()  # of the images, which goes where they go
    images, labels = bundled_test_images()
    found = load_arrays(data)
    np.testing.assert_array_equal(found["image"], images)
    np.testing.assert_array_equal(found["y"], labels)
    report = api.compare(model, model, data)
    assert report.accuracy_a == pytest.approx(0.92, abs=0.01)
    assert report.samples == 2000


def test_a_copy_may_be_made_again_and_folds_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        done = _demo("--copy", tmp_path)
        assert done.exit_code == 0
        assert done.stdout.splitlines() == [
            f"wrote {tmp_path / name}" for name in ("lenet5.onnx", "fashion_mnist_test.npz", "README.md")
        ]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("name", ["README.md", "lenet5.onnx", "fashion_mnist_test.npz"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_copy_replaces_nothing_of_a_user(name: str, is_link: bool, tmp_path: Path) -> None:
    mine, folder = tmp_path / "mine", tmp_path / "folder"
    folder.mkdir()
    mine.write_text("mine")
    if is_link:
        (folder / name).symlink_to(mine)
    else:
        (folder / name).write_text("mine")
    done = _demo("--copy", folder)
    assert isinstance(done.exception, ConfigError)
    assert f"'{folder / name}' " in str(done.exception)
    assert (mine.read_text(), (folder / name).read_text(), len(list(folder.iterdir()))) == ("mine", "mine", 1)


@pytest.mark.parametrize("is_link", [False, True])
def test_the_demo_replaces_only_what_it_folded(is_link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfold.commands.run_demo.SPARSITIES", (0.5,))
    path, mine = tmp_path / "lenet5_50.onnx", tmp_path / "mine.onnx"
    original = (files("onnxfold.data") / "lenet5.onnx").read_bytes()
    (mine if is_link else path).write_bytes(original)
    if is_link:
        path.symlink_to(mine)
    done = _demo("--out", tmp_path)
    assert isinstance(done.exception, ConfigError)
    assert path.read_bytes() == original
    if not is_link:
        model = onnx.load(path)
        add_run(model, {})
        onnx.save(model, path)
        run_demo(tmp_path, "lenet5")
        assert path.stat().st_size < len(original)


def test_a_full_disk_leaves_no_folder(tmp_path: Path) -> None:
    with files_of_at_most(100_000):
        done = _demo("--copy", tmp_path / "new" / "folder")
    assert isinstance(done.exception, ModelSaveError)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_takes_a_folder_and_no_other_output(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert isinstance(_demo("--copy", tmp_path / "file").exception, ModelSaveError)
    done = _demo("--copy", tmp_path, "--out", tmp_path / "out")
    assert isinstance(done.exception, ConfigError)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
