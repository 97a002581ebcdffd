"""The benchmark of fewer words judges models by their own tokenizers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.vocabulary import main
from testing.vocabularies import LATIN, OTHERS, write_folder


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_rows_and_page(kind: str, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", "pieces", is_encoder=kind == "encoder")
    (tmp_path / "text.txt").write_text("\n".join([LATIN[:90], LATIN[60:150], LATIN[100:190], OTHERS[:80]] * 24))
    rows, page = tmp_path / "rows.json", tmp_path / "page.md"
    options = [f"--{kind}", str(source), "--name", "tiny", "--text", str(tmp_path / "text.txt"), "--characters", "4000"]
    assert main([*options, "--keep", "latin,common", "--fold", "--rows", str(rows), "--page", str(page)]) == 0
    kept = json.loads(rows.read_text())["tiny"]
    original, words, folded = kept.values()
    assert list(kept) == ["original", "words: latin,common", "fold-ls to the size of words: latin,common"]
    assert words["words"] < original["words"] == folded["words"]
    assert abs(words["removed"] - folded["removed"]) < 0.02
    assert words["tokens"]["text"] >= original["tokens"]["text"]
    if kind == "encoder":
        assert set(original["judged"].values()) == {100.0}
    assert page.read_text().count("\n| ") == 5
