"""Completion in shells, by the lines that docs/integrations.md gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete

from onnxfold.cli import cli

PAGE = Path(__file__).resolve().parents[1] / "docs" / "integrations.md"

#: What the shell does when a user presses Tab behind each of these.
_PRESS_TAB = """
COMP_WORDS=({words}) COMP_CWORD={last} COMPREPLY=()
_onnxfold_completion "${{COMP_WORDS[@]}}"
echo "${{COMPREPLY[@]}}"
"""


def _lines() -> dict[str, str]:
    """Return the line of every shell."""
    block = re.search(r"## Shells.*?```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block
    return {line.split("_source")[0].rpartition("=")[2]: line for line in block[1].splitlines()}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which a shell finds the command."""
    command = tmp_path / "onnxfold"
    # click names the variable after the command, whose name python -c would not know.
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.argv[0] = 'onnxfold'\nfrom onnxfold.cli import main\nmain()\n"
    )
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


def test_bash_completes_commands_and_options(environment: dict[str, str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash on this machine")
    presses = [_PRESS_TAB.format(words=words, last=words.count(" ")) for words in ("onnxfold co", "onnxfold fold --qu")]
    done = subprocess.run(
        [bash, "-c", _lines()["bash"] + "".join(presses)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["compare", "--quiet"]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("fold --method prune", ["prune-l1", "prune-l2"]),
        ("fold --cluster kmeans", ["kmeans", "kmeans-heads"]),
        ("fold --repair re", ["recalibrate"]),
        ("fold --device esp", ["esp-eye", "esp32-s3"]),
        ("fold --objective m", ["macs"]),
        ("fold --allocation u", ["uniform"]),
        ("fold --dtype i", ["int8"]),
        ("fold --refine n", ["none", "norms"]),
        ("merge --cluster match", ["matching"]),
        ("bench --device ho", ["host"]),
        ("sweep --method fold-ls,wan", ["fold-ls,wanda-sp"]),
        ("fold --inputs my-", []),  # a file: the shell completes it itself
    ],
)
def test_values_are_completed(words: str, values: list[str]) -> None:
    arguments = words.split()
    completion = BashComplete(cli, {}, "onnxfold", "_ONNXFOLD_COMPLETE")
    found = completion.get_completions(arguments[:-1], arguments[-1])
    assert [item.value for item in found if item.type == "plain"] == values
    assert values or [item.type for item in found] == ["file"]


def test_every_option_with_names_completes_them() -> None:
    """The words of an option's help are those that shells complete."""
    for name in ("method", "cluster", "repair", "allocation", "inputs", "objective", "dtype"):
        option = next(o for o in cli.commands["fold"].params if o.name == name)
        completed = [item.value for item in option.shell_complete(click.Context(cli.commands["fold"]), "")]
        shown = re.findall(r"[\w-]+", (getattr(option, "help", "") or "").partition(": ")[2])
        assert {word for word in completed if word != "latency"} <= set(shown), name


@pytest.mark.parametrize(("shell", "registers"), [("zsh", "compdef "), ("fish", "complete ")])
def test_other_shells_get_what_registers_a_completion(shell: str, registers: str, environment: dict[str, str]) -> None:
    assert f"_ONNXFOLD_COMPLETE={shell}_source onnxfold" in _lines()[shell]
    environment["_ONNXFOLD_COMPLETE"] = f"{shell}_source"
    done = subprocess.run(["onnxfold"], env=environment, capture_output=True, text=True, check=True)
    assert re.search(rf"^ *{registers}.*\bonnxfold\b", done.stdout, re.MULTILINE), done.stdout
