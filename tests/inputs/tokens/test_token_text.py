"""Token ids without data: what models write, the prior of a tokenizer, and what users give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxfold
from onnxfold.budget.costs.running import count_token_macs
from onnxfold.config import FoldConfig
from onnxfold.errors import ConfigError, MemoryLimitError
from onnxfold.folding.inputs.choose_inputs import labelled_samples
from onnxfold.graph.files.load import load
from onnxfold.inputs import kept_inputs
from onnxfold.inputs.input_plan import InputRequest
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.tokens import language_model, token_plan
from onnxfold.inputs.tokens.answers import TokenAnswers, TokenFacts
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.language_model import LanguageModel
from onnxfold.inputs.tokens.token_plan import planned_tokens
from onnxfold.inputs.tokens.tokenizer import read_tokenizer
from testing.inputs import model_inputs
from testing.language_models import SPECIAL, WORDS, decoder, encoder, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with a tokenizer beside them."""
    place = tmp_path_factory.mktemp("models")
    onnx.save(decoder(), place / "decoder.onnx")
    onnx.save(encoder(), place / "encoder.onnx")
    onnx.save(encoder(head=True), place / "masked.onnx")
    write_tokenizer(place / "tokenizer.json")
    (place / "text.txt").write_text("abba acdc bad jab a big cab had a fig " * 60)
    return place


def _inputs(path: Path, **options: Any) -> ModelInputs:
    return model_inputs(load(path), "auto", options.pop("calibration", None), source=path, **options)


def _ids(inputs: ModelInputs) -> np.ndarray[Any, Any]:
    return np.concatenate([batch["input_ids"] for batch in inputs.batches])


# -- what models write -----------------------------------------------------------------------------


def test_sources_in_their_order(folder: Path) -> None:
    """A decoder writes, a masked-language head fills in, what gives no scores is run on ids by frequency."""
    found = {name: _inputs(folder / f"{name}.onnx", samples=6) for name in ("decoder", "masked", "encoder")}
    kinds = {name: inputs.kind for name, inputs in found.items()}
    assert kinds == {"decoder": "self-written text", "masked": "filled-in text", "encoder": "tokens by frequency"}
    assert "768 tokens, 6 sequences of 128" in found["decoder"].reason
    assert "gives no scores of words" in found["encoder"].reason
    begins, special = _ids(found["decoder"])[:, 0], list(range(len(SPECIAL)))
    assert 0 < (begins == 0).mean() < 1  # some begin as texts do
    for inputs in found.values():
        assert inputs.fit_rules.shrinks
        assert not np.isin(_ids(inputs)[:, 2:], special).any()
        assert _ids(inputs).max() < WORDS


def test_text_is_mixed_with_other_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One word in six is drawn; and where there is no time to write all sequences, most others are read a few times."""
    whole = _inputs(folder / "decoder.onnx", samples=10)
    assert whole.reason.startswith("1,280 tokens, 10 sequences of 128; written by the model")
    assert "one word in 6 drawn by frequency" in whole.reason
    monkeypatch.setattr(token_plan, "_FEWEST_WRITTEN", 1)
    five = 5.5 * 128 * count_token_macs(load(folder / "decoder.onnx")) / token_plan._WRITTEN_PER_SECOND
    inputs = _inputs(folder / "decoder.onnx", samples=10, seconds=five)
    assert "5 sequences written by the model" in inputs.reason
    assert "3 drawn and read 3 times, 2 drawn by frequency" in inputs.reason
    assert _ids(inputs).shape == (10, 128)
    assert inputs.tokens.answers == TokenAnswers(WORDS, ("present.0.key", "present.0.value"), continue_text=True)
    assert inputs.continues_text
    assert not _inputs(folder / "encoder.onnx", samples=1).continues_text
    assert inputs.fit_rules.doubt.part > _inputs(folder / "encoder.onnx", samples=1).fit_rules.doubt.part > 0.0
    assert "sequences written" not in _inputs(folder / "decoder.onnx", samples=1).reason


def test_without_a_tokenizer_ids_are_any_that_the_table_has() -> None:
    proto = encoder()
    inputs = model_inputs(load(proto), "auto", source=proto, samples=20)
    assert inputs.kind == "random tokens"
    assert set(range(WORDS)) == set(_ids(inputs).ravel().tolist())


@pytest.mark.parametrize("kind", ["dead-leaves", "noise"])
def test_tokens_are_never_images(kind: str) -> None:
    """Whatever is asked for."""
    inputs = model_inputs(load(decoder()), kind, samples=4)
    assert inputs.kind == {"dead-leaves": "self-written text", "noise": "random tokens"}[kind]


def test_seeds_differ_and_the_cache_gives_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_inputs, "WORTH_SECONDS", 0.0)
    path, cache = folder / "decoder.onnx", onnxfold.files.Cache(tmp_path)
    fresh, other = (_inputs(path, samples=3, seed=seed) for seed in (0, 1))
    assert not np.array_equal(_ids(fresh), _ids(other))
    _inputs(path, samples=3, cache=cache)
    monkeypatch.setattr(language_model, "continue_texts", None)
    kept = _inputs(path, samples=3, cache=cache)
    assert np.array_equal(_ids(kept), _ids(fresh))
    assert kept.reason == fresh.reason


# -- tokenizers ------------------------------------------------------------------------------------


def test_the_prior_falls_with_the_rank_of_a_merge(folder: Path) -> None:
    found = read_tokenizer(folder / "tokenizer.json")
    prior = found.prior(WORDS)
    assert prior.sum() == pytest.approx(1.0)
    assert (prior[: len(SPECIAL)] == 0).all()
    merges = prior[len(SPECIAL) + 11 :]
    assert (np.diff(merges) < 0).all()
    assert merges[0] / merges[-1] == pytest.approx((len(merges) - 1 + 50) / 50)
    assert (found.blank, found.beginnings, found.frame) == (1, (0,), ((), ()))
    assert len(found.prior(40)) == 40  # a table with fewer rows


def test_word_pieces_unigrams_and_templates(tmp_path: Path) -> None:
    special = [{"id": i, "content": text, "special": True} for i, text in enumerate(["[CLS]", "[SEP]"])]
    words = {"[CLS]": 0, "[SEP]": 1, "[unused1]": 2, "a": 3, "the": 4, "of": 5, "q": 6}
    post = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "[SEP]"}}],
        "special_tokens": {"[CLS]": {"ids": [0]}, "[SEP]": {"ids": [1]}},
    }
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"added_tokens": special, "post_processor": post, "model": {"vocab": words}}))
    found = read_tokenizer(path)
    prior = found.prior(7)
    assert found.frame == ((0,), (1,))
    assert prior[4] > prior[5] > prior[3] > prior[6] > 0 == prior[2]  # "a" is a word, "q" is a part of words
    path.write_text(json.dumps({"model": {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]}}))
    prior = read_tokenizer(path).prior(2)
    assert prior[0] / prior[1] == pytest.approx(np.e)


NO_TOKENIZERS = (
    "", "[]", "{}", '{"model": {}}', '{"model": {"vocab": {"a": "b"}}}', "[" * 10_000,
    '{"model": {"vocab": {"a": 1}}, "added_tokens": [3]}', '{"model": {"vocab": []}}',
)  # fmt: skip


@pytest.mark.parametrize("content", NO_TOKENIZERS)
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(ConfigError) as error:
        onnxfold.fold(decoder(), 0.05, tokenizer=path)
    assert "\n" not in str(error.value)
    assert "tokenizer.json" in str(error.value)


def test_a_damaged_tokenizer_beside_a_model_is_noted(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes((folder / "encoder.onnx").read_bytes())
    (tmp_path / "tokenizer.json").write_text("{")
    inputs = _inputs(path, samples=2)
    assert inputs.kind == "random tokens"
    assert "without it" in inputs.notes[0]


# -- what users give -------------------------------------------------------------------------------


def test_a_text_becomes_sequences_of_its_front(folder: Path) -> None:
    pytest.importorskip("tokenizers")
    inputs = _inputs(folder / "decoder.onnx", calibration=folder / "text.txt", samples=2)
    ids = read_tokenizer(folder / "tokenizer.json").ids((folder / "text.txt").read_text())
    assert inputs.kind == "data"
    assert np.array_equal(_ids(inputs).ravel(), ids[:512])
    assert str(folder / "text.txt") in inputs.reason


def test_a_text_needs_a_tokenizer_and_words(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe" * 40)
    with pytest.raises(ConfigError, match=r"no tokenizer.json lies beside it: give --tokenizer"):
        model_inputs(load(decoder()), "auto", folder / "text.txt", source=decoder())
    pytest.importorskip("tokenizers")
    with pytest.raises(ConfigError, match="holds 0 tokens"):
        _inputs(folder / "decoder.onnx", calibration=tmp_path / "few.txt")
    with pytest.raises(ConfigError, match="not UTF-8"):
        _inputs(folder / "decoder.onnx", calibration=tmp_path / "bytes.txt")
    other = write_tokenizer(tmp_path / "other.json", words=100)
    with pytest.raises(ConfigError, match="the model knows 64 ids"):
        _inputs(folder / "decoder.onnx", calibration=folder / "text.txt", tokenizer=other)


def test_without_tokenizers_one_line_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install tokenizers"):
        _inputs(folder / "decoder.onnx", calibration=folder / "text.txt")


def test_arrays_of_ids_are_completed() -> None:
    """Masks and caches follow from the ids; what is given is taken."""
    ids = np.random.default_rng(0).integers(0, WORDS, (5, 9))
    given = {"input_ids": ids, "attention_mask": np.ones((5, 9), np.int64)}
    for arrays in ({"input_ids": ids}, given):
        inputs = model_inputs(load(decoder()), "auto", arrays)
        assert np.array_equal(_ids(inputs), ids)
        assert inputs.batches[0]["past_key_values.0.key"].shape == (5, 2, 0, 16)
    with pytest.raises(ConfigError, match="ids from 0 to 64, and the model knows the ids 0 to 63"):
        model_inputs(load(decoder()), "auto", {"input_ids": np.array([[0, 64]])})


# -- folds -----------------------------------------------------------------------------------------


def test_a_fold_is_fitted_on_text_and_verified_on_other_text(folder: Path) -> None:
    result = onnxfold.fold(folder / "decoder.onnx", 0.1, samples=12, cache=None)
    report = result.report
    assert report.inputs is not None
    assert report.fidelity is not None
    assert report.inputs.kind == "self-written text"
    assert report.fidelity.inputs == "held-out self-written text"
    (logits,) = report.fidelity.outputs
    assert logits.top1_samples == 4096  # every position is an answer
    assert any("2 outputs hold the past" in note for note in report.notes)


def test_channels_of_a_language_model_are_dropped_not_averaged(folder: Path) -> None:
    """The rows that are left are rows of the original."""
    result = onnxfold.fold(folder / "decoder.onnx", 0.2, samples=4, verify=False)
    was, is_now = (load(model).weight("ff_0_up_w") for model in (folder / "decoder.onnx", result.model))
    assert is_now.shape[1] < was.shape[1]
    assert {column.tobytes() for column in is_now.T} <= {column.tobytes() for column in was.T}


def test_what_lies_behind_the_last_consumer_is_not_observed(folder: Path) -> None:
    """The scores of all words take most of a run."""
    told: list[tuple[str, int, int]] = []
    onnxfold.fold(
        folder / "decoder.onnx", 0.05, samples=4, verify=False, cache=None, progress=lambda *step: told.append(step)
    )
    seen = [done for text, done, _ in told if text == "observe activations"]
    nodes = [node.op_type for node in load(folder / "decoder.onnx").nodes]
    assert max(seen) < len(nodes) - 2  # without the last norm, and the scores


def test_labelled_ids_are_completed(folder: Path) -> None:
    """Of `--data`, too."""
    ids = np.random.default_rng(0).integers(0, WORDS, (8, 6))
    data = {"input_ids": ids, "y": np.zeros(8, np.int64)}
    found = labelled_samples(load(encoder()), FoldConfig(data=data, max_drop=1.0))
    assert {name: values.shape for name, values in found.held_out[0].items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids"), (2, 6)
    )


def test_what_does_not_fit_into_memory_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing takes more than the fold itself; without room for it, ids are drawn."""

    def full(*_: object) -> None:
        raise MemoryLimitError("running the model needs more")

    monkeypatch.setattr(LanguageModel, "require_memory", full)
    inputs = model_inputs(load(decoder()), "auto", samples=4)
    assert inputs.kind == "random tokens"
    assert "cannot write: running the model needs more" in inputs.reason


def _two_inputs() -> onnx.ModelProto:
    """Scores of whole sequences, as many as there are words, from ids beside an image."""
    f = np.random.default_rng(0).normal
    weights = {"table": f(size=(6, 4)), "head": f(size=(4, 6)), "filters": f(size=(4, 3, 1, 1))}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"]),
        helper.make_node("ReduceMean", ["words"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Conv", ["image", "filters"], ["maps"]),
        helper.make_node("GlobalAveragePool", ["maps"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Add", ["mean", "flat"], ["sum"]),
        helper.make_node("MatMul", ["sum", "head"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "two",
        [
            helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n", 5]),
            helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["n", 3, 8, 8]),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 6])],
        [onnx.numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_scores_of_whole_sequences_write_no_text() -> None:
    view = load(_two_inputs())
    interface = token_interface(view)
    assert interface is not None
    found = model_inputs(view, "auto", samples=8)
    assert "scores whole sequences" in found.reason


def test_sequences_beside_images_are_no_more_than_images() -> None:
    view = load(_two_inputs())
    interface = token_interface(view)
    assert interface is not None
    assert planned_tokens(view, interface, InputRequest()).count == 256


def test_the_front_of_embedded_tokens_is_counted_in_positions() -> None:
    """A model that reads vectors may have no input of two axes."""
    batches = [{"inputs_embeds": np.zeros((16, 256, 8), np.float32)} for _ in range(5)]
    (front,) = ModelInputs(batches, "noise", "", tokens=TokenFacts(TokenAnswers())).front
    assert front["inputs_embeds"].shape == (4, 256, 8)
    assert len(ModelInputs(batches, "noise", "").front) == 5
