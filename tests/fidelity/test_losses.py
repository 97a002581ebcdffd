"""Losses of classifiers and of language models in the measures of those who use them, beside known answers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.fidelity import continuation
from onnxfold.fidelity.answer_measures import Agreement, Tokens
from onnxfold.fidelity.held_out import HeldOut, Texts, measure_fidelity
from onnxfold.fidelity.measures import label_flips
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from onnxfold.inputs.tokens.tokenizer import read_tokenizer
from onnxfold.progress import silent
from onnxfold.report import Fidelity, FidelityReport
from onnxfold.report.closeness import PerplexityRecord
from testing.language_models import SPECIAL, WORDS, decoder, write_tokenizer
from tests.command_line import onnxfold as run


def test_divergences_are_those_of_known_distributions() -> None:
    p, q = np.log([0.5, 0.25, 0.25]), np.log([0.25, 0.5, 0.25])
    one = 0.5 * math.log(2) - 0.25 * math.log(2)
    measure = Tokens()
    measure.add(np.stack([p] * 100)[None], np.stack([p] * 60 + [q] * 40)[None])
    values = measure.values()
    assert values["kl_divergence"] == pytest.approx(0.4 * one)
    assert values["kl_quantiles"] == pytest.approx((0.0, one, one))
    assert values["top1_agreement"] == 0.6
    line = str(Fidelity("y", 0.1, kind="tokens", **values))
    assert "same top token 60.0% (95 % confidence interval 50.2% to 69.1%)" in line
    assert "KL divergence 0.0693 nats (median 0, 99 % 0.173, maximum 0.173)" in line


def test_the_error_of_a_ratio_is_that_of_pairs() -> None:
    p, q = np.log([0.5, 0.5]), np.log([0.25, 0.75])
    measure = Tokens()
    measure.add(np.stack([p] * 5)[None], np.stack([q] * 5)[None], np.array([[0, 1, 1, 0, -1]]))
    surprise = measure.surprise
    a, b = surprise.perplexities
    differences = np.array([math.log(2), math.log(2 / 3)] * 2)
    assert (surprise.tokens, a) == (4, pytest.approx(2.0))
    assert b / a == pytest.approx(np.exp(differences.mean()))
    assert surprise.ratio_error == pytest.approx(b / a * differences.std() / math.sqrt(3))


def test_the_worst_class_is_named_with_its_count() -> None:
    before = np.repeat([0, 1, 2], [40, 30, 19])
    after = before.copy()
    after[:2], after[40:46], after[70:] = 1, 2, 0  # of the third class there are too few
    measure = Agreement()
    for part in (slice(0, 50), slice(50, 89)):
        measure.add(np.eye(3)[before[part]], np.eye(3)[after[part]])
    values = measure.values()
    assert values["class_agreement"] == ((0, 38, 40), (1, 24, 30))
    assert "worst class 1: 80.0% of 30 samples" in str(Fidelity("y", 0.1, **values))
    kept = Agreement()
    kept.add(np.eye(3)[before], np.eye(3)[before])
    assert "worst class" not in str(Fidelity("y", 0.1, **kept.values()))


@pytest.mark.parametrize(
    ("both", "lost", "won", "p"), [(5, 10, 2, 2 * (1 + 12 + 66) / 2**12), (5, 0, 0, 1.0), (0, 1, 6, 2 * 8 / 2**7)]
)
def test_mcnemars_test_of_known_counts(both: int, lost: int, won: int, p: float) -> None:
    before, after = (np.repeat([True, *ends, False], [both, lost, won, 3]) for ends in ((True, False), (False, True)))
    flips = label_flips(before, after)
    assert (flips.lost, flips.won) == (lost, won)
    assert flips.p_value == pytest.approx(p)
    assert f"{lost} right answers lost, {won} won" in FidelityReport([], 1, "x", 0.5, 0.4, flips=flips).lines[-1]


def test_labels_of_a_comparison_give_flips(tmp_path: Path) -> None:
    table = np.eye(4, dtype=np.float32)
    for name, rows in (("a", table), ("b", table[[0, 1, 3, 2]])):
        _save(tmp_path / f"{name}.onnx", rows, "x", [None, 4], linear=True)
    x = table[[0, 1, 2, 2, 3]]
    report = onnxfold.compare(tmp_path / "a.onnx", tmp_path / "b.onnx", {"x": x}, np.array([0, 1, 2, 2, 2]))
    assert report.flips is not None
    assert (report.flips.lost, report.flips.won) == (2, 1)
    assert report.to_dict()["flips"] == {"lost": 2, "won": 1, "p_value": pytest.approx(1.0)}


def _save(path: Path, table: NDArray[np.float32], name: str, shape: list[int | None], *, linear: bool = False) -> None:
    """Write a network that looks rows of a table up, or multiplies by it."""
    kind = TensorProto.FLOAT if linear else TensorProto.INT64
    node = helper.make_node(
        "MatMul" if linear else "Gather", [name, "table"] if linear else ["table", name], ["logits"]
    )
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*shape[: 1 + (not linear)], len(table)])
    graph = helper.make_graph(
        [node], "table", [helper.make_tensor_value_info(name, kind, shape)], [output],
        [numpy_helper.from_array(table, "table")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _cycle(length: int) -> NDArray[np.float32]:
    """Return scores by which words follow each other in a cycle; a special token is likelier still."""
    table, first = np.zeros((WORDS, WORDS), np.float32), len(SPECIAL)
    words = np.arange(first, WORDS)
    table[words, first + (words - first + 1) % length] = 2.0
    table[:, 0] = 3.0
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return models that go round in cycles, decoders with and without caches, a tokenizer, and a text."""
    place = tmp_path_factory.mktemp("models")
    for length in (5, 62):
        _save(place / f"cycle{length}.onnx", _cycle(length), "input_ids", [None, None])
    decoders = {"caches": decoder(0), "plain": decoder(0, past=False), "short": decoder(0, positions=60)}
    for name, model in decoders.items():
        onnx.save(model, place / f"{name}.onnx")
    write_tokenizer(place / "tokenizer.json")
    (place / "text.txt").write_text("abba acdc bad jab a big cab had a fig " * 20)
    return place


def _on_text(folder: Path, a: str, b: str) -> tuple[PerplexityRecord, list[str]]:
    pytest.importorskip("tokenizers")
    report = onnxfold.compare(folder / f"{a}.onnx", folder / f"{b}.onnx", text=folder / "text.txt", window=50)
    assert report.perplexity is not None
    return report.perplexity, report.notes


def test_the_loop_rate_is_that_of_known_cycles(folder: Path) -> None:
    found, notes = _on_text(folder, "cycle62", "cycle5")
    assert found.repeated == pytest.approx((1 - 62 / 125, 1 - 5 / 125))
    assert "loop rate (4-grams that come again in greedy texts) 50.4% -> 96.0%" in found.lines
    assert not notes


def test_texts_are_the_same_with_and_without_caches(folder: Path) -> None:
    (caches, _), (plain, _) = (_on_text(folder, name, name) for name in ("caches", "plain"))
    assert caches.repeated == plain.repeated
    assert (caches.a, caches.ratio_error) == (pytest.approx(plain.a, rel=1e-4), 0.0)


def test_bits_per_byte_are_those_of_the_text(folder: Path) -> None:
    found, _ = _on_text(folder, "cycle62", "cycle5")
    ids = read_tokenizer(folder / "tokenizer.json").ids((folder / "text.txt").read_text())
    pieces = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    sizes = {i: len(piece) for piece, i in pieces.items()}
    scored = ids[: found.windows * 50].reshape(-1, 50)[:, 1:]
    assert found.bits_per_byte is not None
    bits = [math.log2(value) * scored.size / sum(sizes[i] for i in scored.flat) for value in (found.a, found.b)]
    assert found.bits_per_byte == pytest.approx(bits)


def test_what_is_too_costly_or_too_long_is_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, notes = _on_text(folder, "short", "short")
    assert found.repeated is None
    assert "the loop rate of greedy texts was not measured: a sequence holds fewer than 136 tokens" in notes
    monkeypatch.setattr(continuation, "WRITING_COST", 1e6)
    found, notes = _on_text(folder, "caches", "caches")
    assert found.repeated is None
    assert any(note.endswith("multiply-accumulates, more than 1e+06") for note in notes)


def test_padding_is_no_text(folder: Path) -> None:
    view = load(folder / "plain.onnx")
    sessions = [Session(folder / "plain.onnx") for _ in range(2)]
    mask = np.array([[1] * 20, [0] * 8 + [1] * 12], np.int64)
    feeds = {"input_ids": np.full((2, 20), 7, np.int64), "attention_mask": mask}
    read = Texts().continuation(sessions, [view, view], silent)
    assert read is not None
    report = measure_fidelity(*sessions, HeldOut.of([feeds], "x"), called="some", view=view, texts=read)
    assert report.perplexity is not None
    assert (report.perplexity.scored, report.perplexity.bits_per_byte) == (19 + 11, None)


def test_a_fold_reports_them_in_every_form(tmp_path: Path) -> None:
    model, page = tmp_path / "model.onnx", tmp_path / "page.html"
    onnx.save(decoder(), model)
    write_tokenizer(tmp_path / "tokenizer.json")
    done = run(
        "fold", model, tmp_path / "out.onnx", "--sparsity", "0.1", "--report", page, "--json", "--no-cache", "--force"
    )
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)["fidelity"]["perplexity"]
    assert values["b"] > values["a"] > 1.0
    assert 0.0 < values["ratio_error"] < 1.0
    lines, html = done.stderr.splitlines(), page.read_text()
    for line in PerplexityRecord(**values).lines:
        assert line in lines
        assert f"{line[0].upper()}{line[1:]}.".replace(">", "&gt;") in html
