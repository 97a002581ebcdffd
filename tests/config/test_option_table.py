"""An option that is added to the table of options is there in Python, on the command line, in reports and on pages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FIELD = """
    colour: Annotated[str, _Method(
        help="Colour of the `method`.", check=checks.text, metavar="NAME", in_merge=True, in_sweep=SHARED,
    )] = "red"
    # fmt: on
"""

_CHECK = """
from inspect import signature
import pytest
from click.testing import CliRunner
import onnxfold
from docs import generate
from onnxfold.cli import cli
from onnxfold.config import FoldConfig
from onnxfold.errors import OptionTypeError
from onnxfold.html_report import command_line
from onnxfold.sweeps.job import Goal, Job
from testing import models
from tests.html_report.reports import bare

for command in ("fold", "merge", "sweep"):
    shown = " ".join(CliRunner().invoke(cli, [command, "--help"], terminal_width=300).output.split())
    assert "--colour NAME Colour of the --method." in shown, command
assert "[default: red]" in " ".join(CliRunner().invoke(cli, ["fold", "--help"]).output.split())
assert FoldConfig(colour="blue").to_dict()["colour"] == "blue"
assert "colour" not in FoldConfig().to_dict()
for wrong in (lambda: FoldConfig(colour=3), lambda: onnxfold.fold(models.mlp(0), color="blue")):
    with pytest.raises(OptionTypeError, match="colour"):
        wrong()
report = bare()
report.config = FoldConfig(colour="light blue").to_dict()
assert "--colour 'light blue'" in command_line(report)
for function in (onnxfold.fold, onnxfold.merge):
    assert signature(function).parameters["colour"].default == "red"
    assert "Colour of the `method`." in function.__doc__
assert Job("", Goal("sparsity", 0.5), "fold-ls", 0, {}, {"colour": "blue"}).config({}).colour == "blue"
assert "`--colour NAME`" in generate.render_cli()
assert "`colour`" in generate.render_options()
assert "    colour: str\\n" in generate.render_options_by_name().partition("class FoldOptions(SharedOptions")[0]
"""


def test_an_option_of_the_table_is_everywhere(tmp_path: Path) -> None:
    for folder in (
        "onnxfold",
        "passes",
        "export",
        "edge_bench",
        "testing",
        "tests",
        "docs",
        "benchmarks",
        "integrations",
    ):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "onnxfold").unlink()
    shutil.copytree(ROOT / "onnxfold", tmp_path / "onnxfold", symlinks=True)
    table = tmp_path / "onnxfold" / "config" / "fold_config.py"
    before, mark, after = table.read_text(encoding="utf-8").partition("    # fmt: on\n")
    assert mark
    table.write_text(before + _FIELD.lstrip("\n") + after, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _CHECK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
