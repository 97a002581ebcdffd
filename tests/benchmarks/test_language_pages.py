"""The benchmark of language models, on small ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

from benchmarks.language_models import generation, text
from benchmarks.language_models.__main__ import main
from benchmarks.language_models.generation import PROMPTS, speed
from benchmarks.language_models.text import REFERENCE
from testing.language_models import encoder, write_tokenizer
from testing.model_folders import write_genai_folder

pytest.importorskip("tokenizers")
WORDS = ("abba", "acdc", "bad", "jab", "a", "big", "cab", "had", "a", "fig")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, a tokenizer, and a text."""
    folder = tmp_path_factory.mktemp("language")
    onnx.save(encoder(), folder / "encoder.onnx")
    write_tokenizer(folder / "tokenizer.json")
    lines = [" ".join(WORDS[i % 7 :] + WORDS[: i % 5] + WORDS[i % 3 :]) for i in range(300)]
    (folder / "text.txt").write_text("\n".join(lines))
    return folder


def _run(place: Path, *arguments: str) -> list[dict[str, object]]:
    shared = ["--text", str(place / "text.txt"), "--sparsity", "0.1", "--windows", "2", "--front", "4", "16"]
    assert main([*shared, "--rows", str(place / "rows.json"), *arguments]) == 0
    found: list[dict[str, object]] = json.loads((place / "rows.json").read_text())["rows"]
    return found


def test_rows_are_measured_alone_and_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_SENTENCES", 20)
    monkeypatch.setattr(generation, "_LONGEST", 2)
    folder = write_genai_folder(place / "folder")
    shutil.copy(place / "tokenizer.json", folder)
    model = ["--decoder", str(folder)]
    rows = _run(place, *model, "--methods", "prune-l2", "flap", "--inputs", "text", "--examples", "--speed")
    assert [(r["method"], r["inputs"]) for r in rows] == [("flap", "data"), ("prune-l2", "data")]
    for row in rows:
        scores = row["scores"]
        assert isinstance(scores, dict)
        assert list(scores) == ["text", REFERENCE]
        assert isinstance(row["examples"], list)
        assert len(row["examples"]) == len(PROMPTS)
        for found in scores.values():
            assert found["ratio"] == pytest.approx(found["after"] / found["before"])
    rows = _run(place, *model, "--methods", "fold-ar", "--option", "allocation=uniform")
    assert [(r["method"], r["on_text"]) for r in rows] == [("fold-ar", False), ("flap", True), ("prune-l2", True)]
    rows = _run(place, "--encoder", str(place / "encoder.onnx"), "--methods", "wanda-sp", "--option", "samples=8",
                "--page", str(place / "page.md"))  # fmt: skip
    (by_encoder,) = (r for r in rows if r["kind"] == "encoder")
    for found in by_encoder["scores"].values():  # type: ignore[attr-defined]
        assert 0.0 <= found["kept"] <= 1.0
        assert -1.0 <= found["rank"] <= 1.0
    page = (place / "page.md").read_text()
    assert "| fold-ar, allocation uniform |" in page
    assert page.count("## ") == 3
    assert all(page.count(f"*{prompt}* ...") == 1 for prompt in PROMPTS)
    kept = (place / "rows.json").read_bytes()
    monkeypatch.setattr("benchmarks.language_models.__main__.draw", lambda rows, file: True)
    assert main(["--rows", str(place / "rows.json"), "--page", str(place / "again.md")]) == 0
    assert (place / "again.md").read_text() == page
    assert (place / "rows.json").read_bytes() == kept


def test_what_is_refused_is_no_row(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--text", str(place / "text.txt"), "--encoder", str(place / "encoder.onnx")]
    chosen = ["--methods", "none-such", "--sparsity", "0.1", "--rows", str(place / "none.json")]
    assert main([*files, *chosen]) == 1
    assert "10% none none-such: method 'none-such' is unknown" in capsys.readouterr().out
    assert not (place / "none.json").exists()


def test_a_text_is_asked_for(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--decoder", "model.onnx", "--rows", str(place / "none.json")])
    assert "give --text" in capsys.readouterr().err


def test_tokens_per_second(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    folders = [write_genai_folder(tmp_path / name) for name in ("a", "b")]
    found = speed(*folders)
    assert found["before"] > 0.0
    assert 0.05 < found["ratio"] < 20.0
    assert speed(folders[0], tmp_path) == {}
