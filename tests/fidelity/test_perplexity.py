"""Perplexity of language models on a text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.errors import ConfigError, MemoryLimitError
from onnxfold.graph.run.session import Session
from onnxfold.inputs.tokens.tokenizer import read_tokenizer
from testing.language_models import decoder, encoder, write_tokenizer
from tests.command_line import onnxfold as run

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of different weights, one without a past, and a text."""
    place = tmp_path_factory.mktemp("models")
    for name, model in (("a", decoder(0)), ("b", decoder(1)), ("plain", decoder(0, past=False)), ("e", encoder())):
        onnx.save(model, place / f"{name}.onnx")
    write_tokenizer(place / "tokenizer.json")
    (place / "text.txt").write_text("abba acdc bad jab a big cab had a fig " * 40)
    return place


def _by_hand(path: Path, text: Path, window: int, windows: int) -> float:
    """Return the perplexity, computed in the plainest way: one run and one softmax per token."""
    ids = read_tokenizer(path.parent / "tokenizer.json").ids(text.read_text())
    session, found = Session(path), []
    for w in range(windows):
        row = ids[w * window : (w + 1) * window]
        feeds = {"input_ids": row[None], "attention_mask": np.ones((1, window), np.int64)}
        if len(session.inputs) > 2:
            feeds |= {f"past_key_values.0.{k}": np.zeros((1, 2, 0, 16), np.float32) for k in ("key", "value")}
        logits = session.run(feeds)[0][0].astype(np.float64)
        found += [np.log(np.exp(logits[i]).sum()) - logits[i, row[i + 1]] for i in range(window - 1)]
    return float(np.exp(np.mean(found)))


@pytest.mark.parametrize("names", [("a", "b"), ("plain", "plain")])
def test_perplexities_are_those_computed_by_hand(folder: Path, names: tuple[str, str]) -> None:
    a, b = (folder / f"{name}.onnx" for name in names)
    text = folder / "text.txt"
    report = onnxfold.compare(a, b, text=text, window=50, windows=3)
    found = report.perplexity
    assert found is not None
    assert found.a == pytest.approx(_by_hand(a, text, 50, 3), rel=1e-4)
    assert found.b == pytest.approx(_by_hand(b, text, 50, 3), rel=1e-4)
    assert (found.windows, found.window, found.scored, report.samples) == (3, 50, 147, 3)
    (logits,) = report.outputs
    assert logits.top1_samples == 150
    assert (logits.relative_error == 0) == (a == b)


def test_a_short_text_gives_fewer_windows(folder: Path) -> None:
    model, text = folder / "a.onnx", folder / "text.txt"
    tokens = len(read_tokenizer(folder / "tokenizer.json").ids(text.read_text()))
    found = onnxfold.compare(model, model, text=text, window=100).perplexity
    assert found is not None
    assert found.windows == tokens // 100 < 24


def test_the_command_prints_perplexities_and_windows(folder: Path) -> None:
    a, b, text = (str(folder / name) for name in ("a.onnx", "b.onnx", "text.txt"))
    done = run("compare", a, b, "--text", text, "--window", "40", "--windows", "2")
    assert done.returncode == 0, done.stderr
    assert "perplexity " in done.stdout
    assert "on 2 windows of 40 tokens of" in " ".join(done.stdout.split())


def test_what_cannot_be_compared_on_a_text_is_refused(folder: Path, tmp_path: Path) -> None:
    model, text = folder / "a.onnx", folder / "text.txt"
    with pytest.raises(ConfigError, match="less than one window"):
        onnxfold.compare(model, model, text=text, window=100_000)
    with pytest.raises(ConfigError, match="the first gives no scores of words"):
        onnxfold.compare(folder / "e.onnx", folder / "e.onnx", text=text, window=30)
    with pytest.raises(ConfigError, match="takes no tokens"):
        onnxfold.compare(*[Path(onnxfold.__file__).parent / "data" / "lenet5.onnx"] * 2, text=text)
    with pytest.raises(ConfigError, match="does not exist"):
        onnxfold.compare(model, model, text=tmp_path / "absent.txt")
    with pytest.raises(ConfigError, match="on data or on a text"):
        onnxfold.compare(model, model, {"input_ids": np.ones((1, 4), np.int64)}, text=text)
    with pytest.raises(ConfigError, match="tokenizer"):
        onnxfold.compare(model, model, text=text, tokenizer=3)  # type: ignore[arg-type]
    (tmp_path / "long.txt").write_text("a big cab " * 10_000)
    with onnxfold.machine.memory.memory_limit(1_000_000), pytest.raises(MemoryLimitError, match="the text"):
        onnxfold.compare(model, model, text=tmp_path / "long.txt", window=20, windows=5_000)
    with pytest.raises(ConfigError, match="window"):
        onnxfold.compare(model, model, text=text, window=1)
