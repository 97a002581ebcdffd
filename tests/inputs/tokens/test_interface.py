"""Which input of a language model is what, and values that fit together."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from onnxfold.graph.shapes.footprint import Footprint
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.synthetic import noise_inputs, synthetic_inputs
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens.interface import (
    Purpose,
    TokenInterface,
    cache_of,
    token_feeds,
    token_interface,
    whole_feeds,
)
from onnxfold.inputs.tokens.language_model import Writing, continue_texts
from onnxfold.progress import ProgressBar
from testing.genai_models import LONGEST, Kind, genai_decoder
from testing.language_models import WORDS, decoder, encoder, grouped_query_decoder
from testing.models import chain_conv, run

MODELS = {
    "decoder": decoder(), "positions": decoder(positions=50, layers=2), "no past": decoder(past=False),
    "grouped": grouped_query_decoder(), "genai": grouped_query_decoder(free_size=True), "encoder": encoder(),
}  # fmt: skip


def _info(name: str, dtype: type, *shape: int | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def _refuse(*_: object) -> np.ndarray:
    raise AssertionError("an input is not made of tokens")


def _interface(infos: list[onnx.ValueInfoProto]) -> TokenInterface | None:
    """Return the purposes of inputs of a model that reads the first of them."""
    node = helper.make_node("Cast", [infos[0].name], ["y"], to=TensorProto.FLOAT)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return token_interface(load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)))


@pytest.mark.parametrize("name", MODELS)
def test_values_fit_together(name: str) -> None:
    """The model runs on them: as they are generated, and as they are drawn for latency."""
    view = load(MODELS[name])
    session = Session(MODELS[name])
    (batch,) = synthetic_inputs(view, samples=3)
    assert batch["input_ids"].max() < WORDS
    assert all(np.isfinite(out).all() for out in session.run(batch))
    drawn = noise_inputs(session.inputs, samples=2, seed=0, view=view)
    assert len(session.run(drawn)[0]) == 2


def test_parts_follow_from_name_and_type() -> None:
    infos = [
        _info("input_ids", np.int64, None, None),
        _info("attention_mask", np.float32, None, None),
        _info("position_ids", np.int64, None, None),
        _info("token_type_ids", np.int64, None, None),
        _info("past_key_values.3.value", np.float32, None, 3, None, 8),
        _info("use_cache_branch", np.bool_, 1),
        _info("total_sequence_length", np.int32),
        _info("seqlens_k", np.int32, None),
        _info("past_sequence_length", np.int32, 1),
        _info("num_logits_to_keep", np.int64),
        _info("pixel_values", np.float32, None, 3, 32, 32),
    ]
    found = _interface(infos)
    assert found is not None
    assert [one.purpose for one in found.inputs] == [
        Purpose.IDS, Purpose.MASK, Purpose.POSITIONS, Purpose.TYPES, Purpose.CACHE, Purpose.USES_CACHE,
        Purpose.TOTAL_LENGTH, Purpose.LAST_POSITION, Purpose.PAST_LENGTH, Purpose.KEPT_LOGITS, Purpose.OTHER,
    ]  # fmt: skip
    feeds = token_feeds(found, np.zeros((2, 5), np.int64), lambda one, shape: np.ones(shape, one.dtype), past=4)
    assert feeds["attention_mask"].shape == (2, 9)
    assert feeds["position_ids"][1].tolist() == [4, 5, 6, 7, 8]
    assert feeds["past_key_values.3.value"].shape == (2, 3, 4, 8)
    assert feeds["total_sequence_length"] == 9
    assert feeds["seqlens_k"].tolist() == [8, 8]
    assert feeds["past_sequence_length"].tolist() == [4]
    assert feeds["use_cache_branch"].tolist() == [True]
    assert feeds["pixel_values"].shape == (2, 3, 32, 32)
    # A mask of floats that is no input of a language model, and ids that are floats.
    assert _interface([_info("mask", np.float32, None, 1, 8, 8), _info("x", np.float32, None, 3)]) is None
    assert _interface([_info("input_ids", np.float32, None, None)]) is None
    assert token_interface(load(chain_conv(0))) is None


def test_a_causal_mask_and_a_fixed_past() -> None:
    infos = [
        _info("tokens", np.int32, 1, 4),
        _info("causal_mask", np.float32, 1, 1, 4, 10),
        _info("attention_mask", np.int64, 1, 10),
        _info("past_key_0", np.float32, 1, 2, 6, 8),
        _info("position_ids", np.int64, 4),
    ]
    found = _interface(infos)
    assert found is not None
    assert (found.fixed_batch, found.fixed_length) == (1, 4)
    feeds = whole_feeds(found, np.zeros((1, 4), np.int64), _refuse)
    assert feeds["attention_mask"].tolist() == [[0] * 6 + [1] * 4]
    assert (feeds["causal_mask"][0, 0, 0] < -100).tolist() == [False] * 7 + [True] * 3
    assert feeds["past_key_0"].shape == (1, 2, 6, 8)
    assert feeds["position_ids"].tolist() == [6, 7, 8, 9]


def test_the_size_of_heads_comes_from_the_attention() -> None:
    """As onnxruntime-genai's builder leaves it free."""
    found = token_interface(load(MODELS["genai"]))
    assert found is not None
    assert cache_of(found.inputs_for(Purpose.CACHE)[0], 2, 7) == (2, 1, 7, 16)


def test_positions_limit_the_length() -> None:
    """By a table of positions that is an input's, and by one that a constant row of numbers looks up."""
    lengths = [token_interface(load(m)) for m in (decoder(positions=20), encoder(positions=12))]
    assert [found.table.longest for found in lengths if found] == [18, 10]


def test_cosines_of_one_sequence_limit_the_batch() -> None:
    """As torch exports rotary positions in operator set 23; onnxruntime does not repeat them."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 23]>
        g (int64[B, S] input_ids) => (float[B, 1, S, 8] y)
        <float[50, 8] words, float[1, 1, 4] row, int64[1] one = {1}, int64[1] four = {4}> {
            x = Gather (words, input_ids)
            heads = Unsqueeze (x, one)
            length = Shape <start = 1> (input_ids)
            target = Concat <axis = 0> (one, length, four)
            cosines = Expand (row, target)
            y = RotaryEmbedding (heads, cosines, cosines)
        }
        """
    )
    random = np.random.default_rng(0)
    for name, shape in (("words", (50, 8)), ("row", (1, 1, 4))):
        model.graph.initializer.append(numpy_helper.from_array(random.random(shape, np.float32), name))
    found = token_interface(load(model))
    assert found is not None
    assert found.fixed_batch == 1
    assert run(model, {"input_ids": np.ones((1, 3), np.int64)})[0].shape == (1, 1, 3, 8)
    with pytest.raises(Exception, match="same shape"):
        run(model, {"input_ids": np.ones((2, 3), np.int64)})


@pytest.mark.parametrize("kind", ["packed", "multi_head"])
def test_tables_of_cosines_limit_the_length(kind: Kind) -> None:
    found = token_interface(load(genai_decoder(kind)))
    assert found is not None
    assert found.table.longest == LONGEST
    assert found.length(128) == LONGEST


def test_ids_of_any_name_are_those_that_look_words_up() -> None:
    model = decoder(past=False)
    renamed = onnx.compose.add_prefix(model, "x_", rename_inputs=True)
    for value, name in zip(renamed.graph.input, ("x_0", "x_attention_mask"), strict=True):
        for node in renamed.graph.node:
            node.input[:] = [name if n == value.name else n for n in node.input]
        value.name = name
    found = token_interface(load(renamed))
    assert found is not None
    assert found.ids is not None
    assert found.ids.name == "x_0"
    # Two tables are categories of something.
    nodes = [helper.make_node("Gather", [t, i], [f"{i}_row"]) for t, i in (("ta", "a"), ("tb", "b"))]
    nodes.append(helper.make_node("Add", ["a_row", "b_row"], ["y"]))
    infos = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", 3]) for n in "ab"]
    tables = [helper.make_tensor(n, TensorProto.FLOAT, [9, 2], np.ones(18)) for n in ("ta", "tb")]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info("y", 1, None)], tables)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert token_interface(load(model)) is None


def test_what_a_model_takes_is_told_before_it_is_run() -> None:
    told: list[str] = []
    onnxfold.fold(
        MODELS["grouped"], 0.05, samples=4, verify=False, cache=None, progress=lambda text, *_: told.append(text)
    )
    takes = next(text for text in told if text.startswith("model takes"))
    assert takes == (
        "model takes input_ids = token ids below 64; attention_mask = attention mask of ones; past_key_values.0.key, "
        "past_key_values.0.value = past of length 0"
    )
    assert told.index(takes) < told.index("write text")


def test_what_a_model_takes_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """While it is folded, on the error stream; and of inspection, where nothing is run."""
    with ProgressBar() as tell:
        tell("model takes x = token ids\x1b below 64")
        tell("generate inputs")
    assert capsys.readouterr().err == "model takes x = token ids\\x1b below 64\n"
    assert onnxfold.api.inspect_model(MODELS["grouped"]).to_dict()["takes"].startswith("input_ids = token ids below 64")
    assert "takes" not in onnxfold.api.inspect_model(chain_conv(0)).to_dict()


def test_memory_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for every token: what is smaller than what was allowed needs no question."""
    asked: list[int] = []
    count = Footprint.of

    def counted(view: GraphView, shapes: dict[str, tuple[int, ...]]) -> Footprint:
        asked.append(1)
        return count(view, shapes)

    interface = token_interface(load(MODELS["decoder"]))
    assert interface is not None
    model = TokenSource(load(MODELS["decoder"]), interface).model(Session(MODELS["decoder"]))
    monkeypatch.setattr(Footprint, "of", counted)
    model.require_memory(4, 20)
    written = np.arange(20) >= 2
    continue_texts(Writing(model, np.zeros(WORDS, bool), 0), np.zeros((4, 20), np.int64), np.tile(written, (4, 1)))
    assert len(asked) == 1
    model.all_scores(np.zeros((4, 40), np.int64))
    assert len(asked) == 2


def test_ids_without_a_table_are_the_smallest() -> None:
    """They are safe, and a user's own may be larger."""
    model = decoder(past=False)
    model.graph.node[0].op_type, model.graph.node[0].domain = "LookUp", "nobody.knows"
    model.opset_import.append(helper.make_opsetid("nobody.knows", 1))
    found = token_interface(load(model))
    assert found is not None
    assert (found.vocabulary, found.table.is_known) == (2, False)
    assert found.knows(np.array([1000]))
    assert not found.knows(np.array([-1]))


def test_rows_are_counted_along_the_axis_that_ids_look_up() -> None:
    """Of a table that is stored the other way round."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", 3])
    table = helper.make_tensor("table", TensorProto.FLOAT, [2, 9], np.ones(18))
    node = helper.make_node("Gather", ["table", "input_ids"], ["y"], axis=1)
    graph = helper.make_graph([node], "g", [ids], [helper.make_tensor_value_info("y", 1, None)], [table])
    found = token_interface(load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)))
    assert found is not None
    assert found.vocabulary == 9
