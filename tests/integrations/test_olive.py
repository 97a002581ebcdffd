"""The pass for Olive, in workflows that Olive itself runs; ``make olive`` installs it in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.fidelity.comparison import compare
from testing import models

olive = pytest.importorskip("olive.workflows", reason="olive-ai is not installed: make olive")

from onnxfold.integrations.olive import REPORT, OnnxFold, package_config  # noqa: E402

#: Few generated inputs, so that a fold takes a second.
QUICK: dict[str, Any] = {"type": "OnnxFold", "inputs": "dead-leaves", "samples": 16, "cache": "none"}


@pytest.fixture(autouse=True)
def _tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLIVE_DISABLE_TELEMETRY", "1")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(models.residual(0), str(path))
    return path


def _workflow(model: Path, *passes: dict[str, Any], **more: Any) -> dict[str, Any]:
    folder = model.parent
    return {
        "input_model": {"type": "ONNXModel", "model_path": str(model)},
        "passes": {f"pass_{i}": config for i, config in enumerate(passes)},
        "cache_dir": str(folder / "cache"),
        "output_dir": str(folder / "out"),
        **more,
    }


def _run(workflow: dict[str, Any]) -> Path:
    """Return the model that a workflow ends with."""
    made = olive.run(workflow, package_config=package_config()).get_best_candidate()
    return Path(made.model_config["model_path"], made.model_config["onnx_file_name"] or "")


def test_a_fold_is_a_step_between_others(model: Path) -> None:
    before = model.read_bytes()
    made = _run(_workflow(model, {"type": "OnnxPeepholeOptimizer"}, {**QUICK, "sparsity": 0.5}))
    report = json.loads(made.with_name(REPORT).read_text())
    assert report["sparsity"] == pytest.approx(0.5, abs=0.01)
    assert report["method"] == "fold-ls"
    assert made.stat().st_size < 0.7 * model.stat().st_size
    assert compare(model, made, seed=0).outputs[0].relative_error < 1.0  # both run, with the same inputs and outputs
    assert model.read_bytes() == before


def test_a_step_is_the_fold_of_these_options(model: Path) -> None:
    made = _run(_workflow(model, {**QUICK, "channel_ratio": 0.25, "method": "fold-ar", "ratios": {"*": 0.5}}))
    options = {name: value for name, value in QUICK.items() if name != "type"}
    same = onnxfold.fold(model, channel_ratio=0.25, method="fold-ar", ratios={"*": 0.5}, **options).model
    found = onnx.load(made)
    weights = [{w.name: onnx.numpy_helper.to_array(w) for w in m.graph.initializer} for m in (same, found)]
    assert weights[0].keys() == weights[1].keys()
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_weights_beside_the_model_come_along(model: Path) -> None:
    made = _run(_workflow(model, {**QUICK, "save_as_external_data": True}))
    assert any(path.suffix == ".data" for path in made.parent.iterdir())
    assert compare(model, made, seed=0).samples > 0


def test_sparsities_may_be_searched_over() -> None:
    from olive.hardware import DEFAULT_CPU_ACCELERATOR
    from olive.search.search_parameter import Categorical

    request = {"sparsity": Categorical([0.2, 0.4]), "method": "fold-ar"}
    _, fixed, searched = OnnxFold.get_config_params(DEFAULT_CPU_ACCELERATOR, dict(request))
    assert searched.keys() == {"sparsity"}
    assert fixed["method"] == "fold-ar"
    point = OnnxFold.generate_config(DEFAULT_CPU_ACCELERATOR, dict(request), {"sparsity": 0.4})
    assert (point.sparsity, point.method) == (0.4, "fold-ar")


@pytest.mark.parametrize(
    ("config", "words"), [({"sparsity": 1.5}, "sparsity"), ({"method": "no-such"}, "no-such")], ids=["value", "name"]
)
def test_a_wrong_option_ends_the_workflow_in_our_words(model: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _run(_workflow(model, {**QUICK, **config}))


def test_only_onnx_models_are_taken(tmp_path: Path) -> None:
    from olive.hardware import DEFAULT_CPU_ACCELERATOR

    config = OnnxFold.generate_config(DEFAULT_CPU_ACCELERATOR, {}, disable_search=True)
    with pytest.raises(UnsupportedModelError, match="put it after OnnxConversion"):
        OnnxFold(DEFAULT_CPU_ACCELERATOR, config)._run_for_config(object(), config, str(tmp_path))


def test_the_command_of_the_page_runs(model: Path, tmp_path: Path) -> None:
    (tmp_path / "workflow.json").write_text(json.dumps(_workflow(model, QUICK)))
    written = subprocess.run(
        [sys.executable, "-m", "onnxfold.integrations.olive"], capture_output=True, text=True, check=True
    )
    (tmp_path / "olive_package.json").write_text(written.stdout)
    words = ["run", "--config", "workflow.json", "--package-config", "olive_package.json"]
    done = subprocess.run(
        [sys.executable, "-m", "olive", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out" / REPORT).is_file()
