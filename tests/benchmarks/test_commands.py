"""Every command that a page, a docstring or the Makefile names is there."""

import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_named_commands_exist() -> None:
    pages = [
        ROOT / "Makefile",
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "onnxfold").glob("data/*.md"),
    ]
    pages += [path for path in (ROOT / "benchmarks").rglob("*") if path.suffix in {".md", ".py"}]
    named = {
        command: path
        for path in pages
        for command in re.findall(r"-m ((?:benchmarks|docs)(?:\.[a-z0-9_]+)+)", path.read_text(encoding="utf-8"))
    }
    assert {"benchmarks.accuracy", "benchmarks.training.cifar10", "docs.generate"} <= set(named)
    missing = {}
    for command, path in named.items():
        spec = find_spec(command)
        if spec is None or (spec.submodule_search_locations is not None and find_spec(f"{command}.__main__") is None):
            missing[command] = path.relative_to(ROOT).as_posix()
    assert missing == {}
