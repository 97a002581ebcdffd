"""First lines of module docstrings: noun phrases or imperatives, each a sentence of one line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("benchmarks", "docs", "edge_bench", "examples", "export", "integrations", "onnxfold", "passes", "testing")
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("**/*.py"))

#: Relative clauses, questions and prepositions, with which neither a noun phrase nor an imperative begins; and verbs in
#: the third person.
CLAUSE = re.compile(
    r"(what|whatever|how|which|why|where|when|that|whether|who|is|are|has|does|if|as|from|in|of|to|for|with|by)\b"
    r"|(adds|drops|gives|holds|makes|measures|prints|reads|removes|returns|says|tells|takes|uses|writes)\b",
    re.IGNORECASE,
)


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring, f"{path.relative_to(ROOT)} has no docstring"
    paragraph = docstring.split("\n\n")[0]
    assert "\n" not in paragraph, f"{path.relative_to(ROOT)}: the first sentence takes more than one line"
    return paragraph


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if (ROOT / folder).is_dir()])
def test_a_module_begins_with_a_noun_phrase_or_an_imperative(folder: str) -> None:
    modules = [path for path in MODULES if path.relative_to(ROOT).parts[0] == folder]
    lines = {str(path.relative_to(ROOT)): _first_line(path) for path in modules}
    assert lines
    assert not [f"{path}: {line}" for path, line in lines.items() if CLAUSE.match(line) or not line.endswith(".")]


@pytest.mark.parametrize("line", ["What a run tells.", "Which rule speaks for which version.", "Prints a row."])
def test_the_check_finds_clauses(line: str) -> None:
    assert CLAUSE.match(line)


@pytest.mark.parametrize("line", ["Registry of rules.", "Format numbers.", "Inputs of a network.", "Isolate it."])
def test_the_check_lets_sentences_pass(line: str) -> None:
    assert not CLAUSE.match(line)
