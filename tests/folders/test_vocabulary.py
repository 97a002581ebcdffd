"""Fewer words: texts of the kept kind give the same tokens and the same answers, and all files of the folder agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

import onnxfold
from onnxfold.errors import ConfigError, NothingToFoldError, UnsupportedModelError
from onnxfold.folding.fold_result import FoldResult
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.kept_tokens import kept_ids, trimmed_content
from onnxfold.inputs.tokens.tokenizer import read_tokenizer
from onnxfold.passes.merge.trim_vocabulary import TrimVocabulary
from testing.genai_models import genai_decoder
from testing.generate import by_genai, by_loop
from testing.model_folders import genai_config
from testing.vocabularies import LATIN, OTHERS, SPECIAL, Family, train, with_words, write_folder
from tests.files.command import onnxfold as command

FAMILIES = get_args(Family)
QUICK: dict[str, Any] = {"inputs": "noise"}


def trimmed(source: Path, out: Path, keep: int | str | Path, **options: Any) -> FoldResult:
    """Fold into a folder."""
    result = onnxfold.fold(source, vocabulary=keep, **QUICK, **options)
    result.save(out)
    return result


def new_ids(source: Path, out: Path) -> dict[int, int]:
    """Return new ids by old ones, by the texts of tokens."""
    before, after = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (source, out))
    return {before.token_to_id(text): i for text, i in after.get_vocab().items()}


def scores(folder: Path, ids: list[int]) -> Any:
    """Return the logits of a decoder, or the hidden states of an encoder, for a text."""
    session = ort.InferenceSession(folder / "model.onnx")
    feeds: dict[str, Any] = {}
    for info in session.get_inputs():
        if len(info.shape) == 4:
            feeds[info.name] = np.zeros((1, info.shape[1], 0, info.shape[3]), np.float32)
        else:
            ones = np.zeros if "type" in info.name else np.ones
            feeds[info.name] = np.array([ids]) if info.name == "input_ids" else ones((1, len(ids)), np.int64)
    return session.run(None, feeds)[0]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder, and its copy with Latin words."""
    folder = tmp_path_factory.mktemp("words")
    source = write_folder(folder / "in", request.param)
    trimmed(source, folder / "out", "latin,common")
    return source, folder / "out"


WORDS = (LATIN + OTHERS).split()


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.one_of(st.sampled_from(WORDS), st.text("aeirstho ,.7é", max_size=6)), min_size=1, max_size=12))
def test_texts_whose_tokens_stay_give_the_same_tokens(pair: tuple[Path, Path], parts: list[str]) -> None:
    source, out = pair
    before, after = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in pair)
    new, text = new_ids(source, out), " ".join(parts)
    ids = before.encode(text).ids
    if new.keys() >= set(ids):
        encoded = after.encode(text)
        assert encoded.ids == [new[i] for i in ids]
        assert after.decode(encoded.ids) == before.decode(ids)


def test_a_latin_text_keeps_its_tokens_and_its_scores(pair: tuple[Path, Path]) -> None:
    source, out = pair
    before, after = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in pair)
    ids, new = before.encode(LATIN).ids, new_ids(source, out)
    assert new.keys() >= set(ids)
    assert not new.keys() >= set(before.encode(OTHERS).ids)
    assert after.encode(LATIN).ids == [new[i] for i in ids]
    was, is_now = scores(source, ids), scores(out, [new[i] for i in ids])
    assert is_now.shape[-1] % 64 == 0
    old = sorted(new, key=lambda i: new[i])
    np.testing.assert_array_equal(is_now[..., : len(old)], was[..., old])


def test_everything_in_the_folder_agrees(pair: tuple[Path, Path]) -> None:
    source, out = pair
    rows = {weight.name: weight.dims for weight in onnx.load(out / "model.onnx").graph.initializer}["embedding"][0]
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert tokenizer.get_vocab_size() <= rows
    assert not (out / "tokenizer.model").exists()
    config, generation, tokens = (
        json.loads((out / name).read_text())
        for name in ("config.json", "generation_config.json", "tokenizer_config.json")
    )
    bos, eos, pad = (tokenizer.token_to_id(text) for text in SPECIAL[1:])
    assert config == json.loads((source / "config.json").read_text()) | {
        "vocab_size": rows, "bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad,
    }  # fmt: skip
    assert generation == {"eos_token_id": [eos, pad], "suppress_tokens": [eos], "temperature": 0.7}
    assert {i: token["content"] for i, token in tokens["added_tokens_decoder"].items()} == {
        str(tokenizer.token_to_id(text)): text for text in SPECIAL
    }
    listed = (out / "vocab.txt").read_text().split("\n")[:-1]
    assert listed == [tokenizer.id_to_token(i) for i in range(len(listed))]
    assert tokenizer.encode("the fox").ids[0] == bos


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_keeps_what_it_is_made_of(family: Family, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", family)
    (tmp_path / "text.txt").write_text(OTHERS)
    result = trimmed(source, tmp_path / "out", tmp_path / "text.txt")
    new = new_ids(source, tmp_path / "out")
    before, after = (Tokenizer.from_file(str(tmp_path / name / "tokenizer.json")) for name in ("in", "out"))
    assert after.encode(OTHERS).ids == [new[i] for i in before.encode(OTHERS).ids]
    assert not new.keys() >= set(before.encode(LATIN).ids)
    assert result.report.after.parameters < result.report.before.parameters


def test_a_number_keeps_the_most_common(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", "bytes")
    trimmed(source, tmp_path / "out", 300)
    before, after = (json.loads((tmp_path / n / "tokenizer.json").read_text())["model"] for n in ("in", "out"))
    assert len(after["vocab"]) == 320
    merges = len(after["merges"])
    assert after["merges"] == before["merges"][:merges]
    assert 320 - 256 - len(SPECIAL) - 2 <= merges < len(before["merges"])


def test_a_fold_follows_and_the_sparsity_counts_both(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", "pieces", tied=True)
    result = trimmed(source, tmp_path / "out", "latin,common", sparsity=0.4)
    report = result.report
    assert abs(report.sparsity - 0.4) < 0.02
    assert any(group.folded_width < group.width for group in report.groups)
    weights = [w for w in onnx.load(source / "model.onnx").graph.initializer if w.data_type == TensorProto.FLOAT]
    assert report.before.parameters == sum(int(np.prod(w.dims)) for w in weights if w.name != "head")  # not read
    assert report.model == str(source / "model.onnx")
    assert report.config["vocabulary"] == "latin,common"
    onnx.checker.check_model(tmp_path / "out" / "model.onnx", full_check=True)


def test_an_encoder(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", "pieces", is_encoder=True)
    trimmed(source, tmp_path / "out", "Latin,Common", sparsity=0.0)
    new = new_ids(source, tmp_path / "out")
    ids = Tokenizer.from_file(str(source / "tokenizer.json")).encode("the quick brown fox").ids
    np.testing.assert_array_equal(scores(source, ids), scores(tmp_path / "out", [new[i] for i in ids]))


def test_a_folder_of_genai_writes_the_same_words(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    source, tokenizer = tmp_path / "in", train("bytes")
    source.mkdir()
    words = tokenizer.get_vocab_size()
    onnx.save(with_words(genai_decoder("packed"), words), source / "model.onnx")
    tokenizer.save(str(source / "tokenizer.json"))
    config = genai_config()
    config["model"] |= {"vocab_size": words, "eos_token_id": [2, 3], "bos_token_id": 1, "pad_token_id": 3}
    (source / "genai_config.json").write_text(json.dumps(config))
    trimmed(source, tmp_path / "out", 400)
    new = new_ids(source, tmp_path / "out")
    stated = json.loads((tmp_path / "out" / "genai_config.json").read_text())["model"]
    assert (stated["vocab_size"], stated["eos_token_id"]) == (448, [new[2], new[3]])
    prompt = [new[i] for i in tokenizer.encode("the dog", add_special_tokens=False).ids]
    written = by_genai(tmp_path / "out", prompt, 24)
    assert written == by_loop(tmp_path / "out", prompt, 24)
    assert max(written) < 448


def test_products_with_few_bits(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words, width, kept = 96, 32, np.array([0, 3, 64, 95])
    weights = {
        "table": random.standard_normal((words, width)).astype(np.float32),
        "head": random.integers(0, 256, (words, 1, 16), np.uint8),
        "scales": random.uniform(0.5, 1.0, words).astype(np.float32),
        "zeros": random.integers(0, 256, words, np.uint8),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("MatMulNBits", ["x", "head", "scales", "zeros"], ["logits"], domain="com.microsoft",
                         K=width, N=words, bits=4, block_size=32),
    ]  # fmt: skip
    infos = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])]
    results = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", words])]
    stored = [numpy_helper.from_array(values, name) for name, values in weights.items()]
    graph = helper.make_graph(nodes, "g", infos, results, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    view: GraphView = load(model)
    assert TrimVocabulary("input_ids", kept, words)(view).modified
    assert not TrimVocabulary("input_ids", kept, words)(view).modified
    ids = np.array([[3, 95, 0]])
    before = ort.InferenceSession(model.SerializeToString()).run(None, {"input_ids": ids})[0]
    after = ort.InferenceSession(to_model(view).SerializeToString()).run(
        None, {"input_ids": np.searchsorted(kept, ids)}
    )[0]
    np.testing.assert_array_equal(after, before[..., kept])


def test_words_that_something_else_reads(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", "pieces")
    model = onnx.load(source / "model.onnx")
    words = model.graph.output[0].type.tensor_type.shape.dim[2].dim_value
    model.graph.node.append(helper.make_node("ArgMax", ["logits"], ["best"], name="choose", axis=-1))
    model.graph.output.append(helper.make_tensor_value_info("best", TensorProto.INT64, ["batch", "sequence", 1]))
    onnx.save(model, source / "model.onnx")
    with pytest.raises(UnsupportedModelError, match=r"ArgMax 'choose' reads 'logits' of all words"):
        onnxfold.fold(source, vocabulary=128, **QUICK)
    del model.graph.output[-1], model.graph.node[-1]
    model.graph.node.append(helper.make_node("Softmax", ["logits"], ["chances"], name="chances"))
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("chances", TensorProto.FLOAT, ["batch", "sequence", words])
    )
    onnx.save(model, source / "model.onnx")
    with pytest.raises(UnsupportedModelError, match="Softmax 'chances' is about all words"):
        onnxfold.fold(source, vocabulary=128, **QUICK)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (5, "tokens must stay, for bytes and special tokens; keep more"),
        (100_000, "keeps all 485 words: keep fewer"),
        ("latin,klingon", "is no file, no number, and no Unicode scripts"),
        ("no_such.txt", "is no file, no number, and no Unicode scripts"),
        ("9" * 5000, "is no file, no number, and no Unicode scripts"),
        ("", "is no file, no number, and no Unicode scripts"),
    ],
)
def test_what_is_refused(keep: int | str, words: str, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", "bytes")
    with pytest.raises((ConfigError, NothingToFoldError), match=words):
        onnxfold.fold(source, vocabulary=keep, **QUICK)


def test_what_else_is_refused(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", "pieces")
    with pytest.raises(ConfigError, match="give the folder of all"):
        onnxfold.fold(source / "model.onnx", vocabulary=64)
    with pytest.raises(ConfigError, match="leave tokenizer out"):
        onnxfold.fold(source, vocabulary=64, tokenizer=source / "tokenizer.json")
    for wrong in (0, 2.5, True):
        with pytest.raises(ConfigError, match="vocabulary="):
            onnxfold.fold(source, vocabulary=wrong)
    train("bytes").save(str(source / "tokenizer.json"))
    with pytest.raises(ConfigError, match="give the tokenizer of this model"):
        onnxfold.fold(source, vocabulary=64)


def test_the_command(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", "bytes")
    done = command(
        "fold", source, tmp_path / "out", "--vocabulary", "latin,common", "--no-verify", "--report", tmp_path / "r.html"
    )
    assert done.code == 0, done.stderr
    assert "note: vocabulary: 384 of 485 words stay, and nothing ran" in done.stdout
    assert "--vocabulary latin,common" in (tmp_path / "r.html").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out", "r.html"]


def test_the_lowest_score_of_a_unigram_model_stays(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", "unigram")
    tokenizer = read_tokenizer(source / "tokenizer.json")
    kept = kept_ids(tokenizer, "latin", 165, [])
    content = trimmed_content(tokenizer.content, {old: i for i, old in enumerate(kept.tolist())})
    lowest = [min(score for _, score in c["model"]["vocab"]) for c in (tokenizer.content, content)]
    assert lowest[0] == lowest[1]
    assert content["model"]["unk_id"] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"added_tokens": [{"id": -3, "content": "<x>", "special": True}]}, "gives the id -3"),
        ({"added_tokens": [{"id": "3", "content": "<x>", "special": False}]}, "is no tokenizer that can be read"),
        ({"model": {"continuing_subword_prefix": "##"}}, "marks how merged pieces continue"),
        ({"post_processor": {"type": "BertProcessing", "cls": ["<s>", 9999], "sep": ["</s>", 2]}}, "gives the id 9999"),
    ],
)
def test_odd_tokenizers_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", "bytes")
    content = json.loads((source / "tokenizer.json").read_text())
    content |= {key: content[key] | value if key == "model" else value for key, value in change.items()}
    (source / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=words):
        onnxfold.fold(source, vocabulary=300, **QUICK)


def test_files_of_slow_tokenizers_follow(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", "bytes")
    model = json.loads((source / "tokenizer.json").read_text())["model"]
    (source / "vocab.json").write_text(json.dumps({**model["vocab"], "odd": [1]}))
    (source / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, model["merges"]), ""]))
    trimmed(source, tmp_path / "out", 300)
    left = json.loads((tmp_path / "out" / "tokenizer.json").read_text())["model"]
    assert json.loads((tmp_path / "out" / "vocab.json").read_text()) == left["vocab"]
    assert (tmp_path / "out" / "merges.txt").read_text().split("\n")[1:-1] == [
        " ".join(pair) for pair in left["merges"]
    ]
