"""What `inspect` finds in three small networks, and what every rule declares, word by word.

Run with ``ONNXFOLD_UPDATE_GOLDEN=1`` to rewrite the files, then read the difference.
"""

import os
from difflib import unified_diff
from pathlib import Path

import pytest

from onnxfold.channels.context import all_rules
from testing.models import ALL_MODELS
from tests.channels.describe import golden
from tests.channels.rule_texts import rule_texts

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("name", ["flatten_conv", "grouped_conv", "two_outputs"])
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    text = golden(ALL_MODELS[name](0))
    if os.environ.get("ONNXFOLD_UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert path.read_text() == text


def test_every_rule_declares_what_its_text_says() -> None:
    texts, folder = rule_texts(), GOLDEN / "rules"
    assert set(texts) == {rule.declare.__name__ for _, rule in all_rules()}
    assert len({(rule.declare.__module__, rule.declare.__name__) for _, rule in all_rules()}) == len(texts)
    if os.environ.get("ONNXFOLD_UPDATE_GOLDEN") == "1":
        for path in folder.glob("*.txt"):
            path.unlink()
        for name, text in texts.items():
            (folder / f"{name}.txt").write_text(text)
    kept = {path.stem: path.read_text() for path in folder.glob("*.txt")}
    assert set(kept) == set(texts)
    for name, text in texts.items():
        difference = unified_diff(kept[name].splitlines(), text.splitlines(), f"{name}.txt", "declared", lineterm="")
        lines = list(difference)
        assert not lines, "\n".join(lines)
