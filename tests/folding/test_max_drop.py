"""The search for the smallest model whose accuracy on labelled samples drops by so much at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.config import FoldConfig
from onnxfold.errors import BudgetError, ConfigError
from onnxfold.fidelity.measures import drop_interval
from onnxfold.folding.inputs.choose_inputs import labelled_samples
from onnxfold.graph.files.load import load
from onnxfold.html_report import render_html
from testing.models import mlp, run
from tests.command_line import onnxfold as command

Array = np.ndarray[Any, np.dtype[Any]]
MODEL = mlp(0, widths=(24, 24))


def _labelled(model: onnx.ModelProto, samples: int = 400, wrong: float = 0.1) -> dict[str, Array]:
    """Samples sorted by class, and labels of which a part is not what the model answers."""
    random = np.random.default_rng(5)
    info = model.graph.input[0]
    x = random.standard_normal((samples, *(d.dim_value for d in info.type.tensor_type.shape.dim[1:]))).astype(
        np.float32
    )
    scores = run(model, {info.name: x})[0]
    y = scores.argmax(axis=1)
    y = np.where(random.random(samples) < wrong, (y + 1) % scores.shape[1], y)
    order = np.argsort(y, kind="stable")
    return {info.name: x[order], "y": y[order]}


DATA = _labelled(MODEL)


@pytest.fixture(scope="module")
def folded() -> Any:
    return onnxfold.fold(MODEL, data=DATA, max_drop=5.0)


def test_the_drop_is_kept_on_samples_that_no_fold_has_seen(folded: Any) -> None:
    found = folded.report.accuracy
    split = labelled_samples(load(MODEL), FoldConfig(data=DATA, max_drop=5.0))
    assert found.samples == len(split.labels) == 100
    assert folded.report.inputs.samples == 240  # of 300 that decide nothing, a fifth is held out for the estimate
    x = np.concatenate([batch["x"] for batch in split.held_out])
    before, after = (float((run(m, {"x": x})[0].argmax(1) == split.labels).mean()) for m in (MODEL, folded.model))
    assert (found.before, found.after) == (before, after)
    assert found.drop == pytest.approx(100 * (before - after))
    assert found.drop <= 5.0
    assert found.interval[0] < found.drop < found.interval[1]
    assert 0.0 < folded.report.sparsity < 1.0
    assert folded.report.to_dict()["accuracy"]["most_drop"] == 5.0


def test_the_note_tells_accuracy_interval_and_sparsity(folded: Any) -> None:
    (note,) = [n for n in folded.report.notes if "held-out samples" in n]
    assert note.startswith(
        f"accuracy {folded.report.accuracy.before:.2%} -> {folded.report.accuracy.after:.2%} on 100 "
    )
    assert "95 % confidence interval" in note
    assert "at sparsity 0." in note
    assert folded.report.requested == "at most 5 points of accuracy lost"


def test_the_page_shows_both_accuracies(folded: Any) -> None:
    found = folded.report.accuracy
    assert f"Labelled samples: accuracy {found.before:.2%} -&gt; {found.after:.2%} on 100" in render_html(folded.report)


def test_more_loss_is_smaller(folded: Any) -> None:
    assert onnxfold.fold(MODEL, data=DATA, max_drop=30).report.after.parameters < folded.report.after.parameters


def test_samples_of_all_classes_decide_though_the_file_is_sorted() -> None:
    split = labelled_samples(load(MODEL), FoldConfig(data=DATA, max_drop=1))
    assert split.shown is not None
    assert set(split.labels) == set(DATA["y"])
    shown, held_out = split.shown["x"], np.concatenate([batch["x"] for batch in split.held_out])
    assert len(np.unique(np.concatenate([shown, held_out]), axis=0)) == len(DATA["x"])


def test_no_more_are_shown_than_asked_for() -> None:
    split = labelled_samples(load(MODEL), FoldConfig(data=DATA, max_drop=1, samples=30))
    assert split.shown is not None
    assert len(split.shown["x"]) == 30
    assert len(split.labels) == 100


@pytest.mark.parametrize("options", [{"calibration": {"x": DATA["x"][:40]}}, {"inputs": "noise", "samples": 40}])
def test_all_samples_decide_where_folds_are_shown_others(options: dict[str, Any]) -> None:
    report = onnxfold.fold(MODEL, data=DATA, max_drop=20, **options).report
    assert report.accuracy is not None
    assert report.accuracy.samples == 400
    assert report.inputs is not None
    assert report.inputs.samples == 40


def test_a_drop_that_cannot_be_kept_is_one_line() -> None:
    model = mlp(0, widths=(6,))
    data = _labelled(model, wrong=0.0)
    with pytest.raises(BudgetError, match=r"a loss of at most 0 points of accuracy cannot be kept: with \d+% of the"):
        onnxfold.fold(model, data=data, max_drop=0)


@pytest.mark.parametrize("names", [("x", "labels"), ("images", "y"), ("input", "labels")])
def test_names_of_the_arrays(names: tuple[str, str]) -> None:
    model = mlp(0)
    data = _labelled(model, 16)
    if names[0] == "input":
        for node in model.graph.node:
            node.input[:] = ["input" if name == "x" else name for name in node.input]
        model.graph.input[0].name = "input"
    given = dict(zip(names, data.values(), strict=True))
    split = labelled_samples(load(model), FoldConfig(data=given, max_drop=1))
    assert len(split.labels) == 4


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"x": DATA["x"]}, "the data has no labels: name their array 'y' or 'labels'"),
        ({**DATA, "labels": DATA["y"]}, "the data has the arrays 'y' and 'labels'"),
        ({"images": DATA["x"], "z": DATA["x"]}, "no labels"),
        ({"z": DATA["x"], "y": DATA["y"]}, "the data has no array 'x'"),
        ({"x": DATA["x"], "y": DATA["y"][:9]}, r"the labels 'y' have the shape \[9\], and there are 400 samples"),
        ({"x": DATA["x"], "y": DATA["y"] + 1000}, "the labels go up to"),
        ({"x": DATA["x"][:3], "y": DATA["y"][:3]}, "3 samples are too few to hold a quarter of them out"),
    ],
)
def test_data_that_do_not_fit_are_refused(data: dict[str, Array], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        onnxfold.fold(MODEL, data=data, max_drop=1)


@pytest.mark.parametrize("goal", [{"sparsity": 0.5}, {"max_params": 100}, {"channel_ratio": 0.5}])
def test_other_goals_are_excluded(goal: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="max_drop decides how far to fold"):
        FoldConfig(data=DATA, max_drop=1.0, **goal)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_drop": 1.0}, "give data"), ({"data": DATA}, "give that, too"),
        ({"data": DATA, "max_drop": 1.0, "min_fidelity": 0.9}, "exclude each other"),
    ],
)  # fmt: skip
def test_what_belongs_together(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FoldConfig(**options)


def test_the_interval_is_that_of_bonett_and_price() -> None:
    assert drop_interval(5, 1, 100) == pytest.approx((-0.0146, 0.0930), abs=1e-4)
    assert drop_interval(0, 0, 10)[0] < 0.0 < drop_interval(0, 0, 10)[1]
    random = np.random.default_rng(0)
    held = [low <= 0.04 <= high for low, high in (
        drop_interval(int(lost), int(won), 200) for lost, won, _ in random.multinomial(200, [0.06, 0.02, 0.92], 2000)
    )]  # fmt: skip
    assert 0.93 < np.mean(held) < 0.98


def test_the_command(tmp_path: Path) -> None:
    onnx.save(MODEL, tmp_path / "in.onnx")
    np.savez(tmp_path / "data.npz", **DATA)
    options = ["--data", tmp_path / "data.npz", "--no-verify"]
    done = command("fold", tmp_path / "in.onnx", tmp_path / "out.onnx", *options, "--max-drop", "5")
    assert done.returncode == 0, done.stderr
    assert "on 100 held-out samples" in " ".join(done.stdout.split())
    onnx.save(mlp(0, widths=(6,)), tmp_path / "narrow.onnx")
    np.savez(tmp_path / "data.npz", **_labelled(mlp(0, widths=(6,)), wrong=0.0))
    refused = command("fold", tmp_path / "narrow.onnx", tmp_path / "none.onnx", *options, "--max-drop", "0")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "cannot be kept" in refused.stderr
    assert not (tmp_path / "none.onnx").exists()
