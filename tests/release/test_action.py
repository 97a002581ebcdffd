"""The GitHub Action: its steps, run as GitHub runs them, by a user of the wheel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfold import api
from testing import models
from tests.release.conftest import ROOT, User

_EXPRESSION = re.compile(r"\$\{\{ (\S+) \}\}")


def _action() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return found


def _filled(text: str, values: dict[str, str]) -> str:
    return _EXPRESSION.sub(lambda match: values[match[1]], text)


def _run(user: User, workspace: Path, given: dict[str, str]) -> tuple[dict[str, str], str]:
    """Run the steps of the action; return its outputs and the summary."""
    action, temp = _action(), workspace / "temp"
    temp.mkdir()
    values = {f"inputs.{name}": given.get(name, entry.get("default", "")) for name, entry in action["inputs"].items()}
    files = {name: temp / name for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
    user.beside(temp / "onnxfold")  # what the action installs is there already but for onnxfold itself
    for step in action["runs"]["steps"]:
        for file in files.values():
            file.touch()
        added = "".join(f"{line}:" for line in files["GITHUB_PATH"].read_text().splitlines())
        variables = {name: _filled(text, values) for name, text in step["env"].items()}
        assert step["shell"] == "bash"
        done = user.run(
            f'set -eo pipefail; PATH="{added}$PATH"; {step["run"]}', workspace, RUNNER_TEMP=str(temp),
            GITHUB_ACTION_PATH=str(ROOT), **{name: str(path) for name, path in files.items()}, **variables,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        if "id" in step:
            lines = [line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines()]
            values |= {f"steps.{step['id']}.outputs.{name}": value for name, value in lines}
    outputs = {name: _filled(entry["value"], values) for name, entry in action["outputs"].items()}
    return outputs, files["GITHUB_STEP_SUMMARY"].read_text()


@pytest.mark.long
def test_the_steps_of_the_action_fold_and_tell(user: User, tmp_path: Path) -> None:
    model, folded = tmp_path / "my model.onnx", tmp_path / "folded.onnx"
    onnx.save(models.residual(0), str(model))
    given = {
        "model": model.name, "output": folded.name, "report": "page.html",
        "arguments": "--channel-ratio 0.25 --inputs dead-leaves --samples 16 --quiet --force",
        "package": str(next(user.folder.glob("*.whl"))),
    }  # fmt: skip
    outputs, summary = _run(user, tmp_path, given)
    after = api.measure(folded)
    assert int(outputs["parameters"]) == after.parameters
    assert float(outputs["sparsity"]) == pytest.approx(1 - after.parameters / api.measure(model).parameters)
    assert f"{after.parameters:,}" in summary
    assert (tmp_path / "page.html").is_file()
    report = json.loads((tmp_path / "temp" / "onnxfold.json").read_text())
    assert outputs["agreement"] == str(report["fidelity"]["outputs"][0]["top1_agreement"] or "")


def test_inputs_and_outputs_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8").partition("## GitHub")[2].partition("##")[0]
    action = _action()
    assert [name for name in (*action["inputs"], *action["outputs"]) if not re.search(rf"\b{name}\b", page)] == []
