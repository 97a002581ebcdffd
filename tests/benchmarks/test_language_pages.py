"""The benchmark of language models, on small ones."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from benchmarks import language_models
from testing.language_models import decoder, encoder, write_tokenizer

pytest.importorskip("tokenizers")


def test_rows_of_a_decoder_and_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_models, "_WINDOWS", 4)
    monkeypatch.setattr(language_models, "_LENGTH", 16)
    for name, model in (("decoder", decoder()), ("encoder", encoder())):
        onnx.save(model, tmp_path / f"{name}.onnx")
    write_tokenizer(tmp_path / "tokenizer.json")
    words = ["abba", "acdc", "bad", "jab", "a", "big", "cab", "had", "a", "fig"]
    lines = [" ".join(words[i % 7 :] + words[: i % 5] + words[i % 3 :]) for i in range(300)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    page = tmp_path / "page.md"
    models = ["--decoder", str(tmp_path / "decoder.onnx"), "--encoder", str(tmp_path / "encoder.onnx")]
    chosen = ["--sparsity", "0.1", "--methods", "fold-ls", "fold-ls on text", "prune-l2", "--windows", "2"]
    assert language_models.main(["--text", str(tmp_path / "text.txt"), *models, *chosen, "--page", str(page)]) == 0
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("|")]
    by_decoder = {row[0]: row for row in rows if len(row) == 6 and "->" in row[3]}
    assert set(by_decoder) == {"fold-ls", "fold-ls on text", "prune-l2"}
    assert [row[2] for row in by_decoder.values()] == ["self-written text", "data", "self-written text"]
    for row in by_decoder.values():
        before, after = (float(value) for value in row[3].split(" -> "))
        assert float(row[4]) == pytest.approx(after / before, rel=0.01)
    by_encoder = [row for row in rows if row[0] in by_decoder and "->" not in row[3]]
    assert [row[0] for row in by_encoder] == ["fold-ls", "prune-l2"]
    assert all(0.0 <= float(row[3]) <= 1.0 and -1.0 <= float(row[4]) <= 1.0 for row in by_encoder)
