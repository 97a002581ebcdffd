"""Jobs of a request: every combination once, under a key that everything decides that matters, and nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from onnxfold import api
from onnxfold.errors import ConfigError, ModelNotFoundError
from onnxfold.sweeps import job as jobs_module
from onnxfold.sweeps.job import DEFAULT_GOALS, Goal, SweepRequest, goals_of, parse_numbers, versions

DATA = Path(api.__file__).parent / "data"
MODEL = DATA / "lenet5.onnx"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.5", (0.5,)),
        ("0.1:0.9:0.1", (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
        ("0.25,0.5,0.25", (0.25, 0.5)),
        ("0.5:0.5:0.1", (0.5,)),
        ("0.1:0.35:0.1", (0.1, 0.2, 0.3)),
    ],
)
def test_lists_and_ranges(text: str, numbers: tuple[float, ...]) -> None:
    assert parse_numbers(text) == numbers


@pytest.mark.parametrize(
    "text", ["", "a", "0.1:0.9", "0.9:0.1:0.1", "0:1:0", "0:1:-0.1", "nan", "0:1:1e-9", "inf", "1,,2"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no"):
        parse_numbers(text)


def test_every_combination_comes_once() -> None:
    goals = goals_of({"sparsity": "0.2,0.4", "channel_ratio": "0.3", "max_macs": ["1M", "1M"], "device": ["esp-eye"]})
    assert [str(goal) for goal in goals] == [
        "sparsity 0.2",
        "sparsity 0.4",
        "channel ratio 0.3",
        "macs 1M",
        "device esp-eye",
    ]
    jobs = SweepRequest((MODEL, DATA / "lenet5_2x.onnx", MODEL), goals, ("fold-ls", "ifm"), 3).jobs()
    assert len({job.key for job in jobs}) == len(jobs) == 2 * 5 * 2 * 3
    assert len({job.inputs_key for job in jobs}) == 2 * 3  # of models and seeds, not of methods and goals
    assert len({job.name for job in jobs}) == len(jobs)
    assert goals_of({}) == DEFAULT_GOALS


def test_the_key_holds_what_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(**changes: object) -> tuple[str, str]:
        (job,) = replace(SweepRequest((MODEL,), (Goal("sparsity", 0.5),)), **changes).jobs()
        return job.key, job.setting

    plain, elsewhere = key(), tmp_path / "other_name"
    shutil.copy(MODEL, elsewhere.with_suffix(".onnx"))
    (tmp_path / "lenet5.onnx").write_bytes(MODEL.read_bytes())
    assert key(models=(tmp_path / "lenet5.onnx",)) == plain  # the same file in another folder
    changes = [
        {"models": (DATA / "lenet5_2x.onnx",)}, {"goals": (Goal("sparsity", 0.6),)}, {"methods": ("ifm",)},
        {"options": {"samples": 7}}, {"data": DATA / "fashion_mnist_test_2000.npz"},
    ]  # fmt: skip
    assert len({plain, *(key(**change) for change in changes)}) == len(changes) + 1
    monkeypatch.setitem(versions(), "onnxruntime", "9.9")
    assert key()[0] != plain[0]
    assert key()[1] == plain[1]
    assert {"onnxfold", "code", "onnxruntime", "numpy"} <= set(jobs_module.versions())


def test_every_refinement_is_a_fold_of_its_own() -> None:
    request = SweepRequest((MODEL,), (Goal("sparsity", 0.5),), options={"refine_steps": 9})
    (alone,) = replace(request, options={}).jobs()
    without, refined = replace(request, refinements=("none", "all")).jobs()
    assert (without.key, without.name) == (alone.key, alone.name)
    assert without.inputs_key == refined.inputs_key
    assert "-fold-ls-refine-all-seed0-" in refined.name
    config = refined.config({"model": MODEL})
    assert (config.refine, config.refine_steps) == ("all", 9)
    with pytest.raises(ConfigError, match="refine_steps changes nothing without refine"):
        request.jobs()


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"models": (Path("missing.onnx"),)}, ModelNotFoundError, "missing.onnx"),
        ({"methods": ("magic",)}, ConfigError, "magic"),
        ({"goals": (Goal("sparsity", 1.5),)}, ConfigError, "sparsity"),
        ({"goals": (Goal("max_macs", "many"),)}, ConfigError, "many"),
        ({"goals": (Goal("device", "toaster"),)}, ConfigError, "toaster"),
        ({"refinements": ("none", "some")}, ConfigError, "some"),
        ({"options": {"objective": "beauty"}}, ConfigError, "beauty"),
        ({"options": {"calibration": "missing.npz"}}, ConfigError, "missing.npz"),
        ({"data": Path("missing.npz")}, ConfigError, "missing.npz"),
    ],
)
def test_what_no_fold_would_take_is_refused_at_once(changes: dict, error: type[Exception], says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(error, match=says):
        replace(SweepRequest((MODEL,)), **changes).jobs()
