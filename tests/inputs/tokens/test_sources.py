"""Where the tokenizer of a model lies, which of its inputs are held out, and which are probed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfold.budget.costs.running import count_token_macs
from onnxfold.graph.files.load import load
from onnxfold.inputs import token_inputs
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens import token_plan
from onnxfold.inputs.tokens.interface import token_interface
from testing.inputs import model_inputs
from testing.language_models import decoder, encoder, write_tokenizer


def _inputs(path: Path, samples: int, seconds: float | None = None) -> ModelInputs:
    return model_inputs(load(path), "auto", source=path, samples=samples, seconds=seconds)


def test_the_tokenizer_of_a_folder_of_graphs_lies_around_it(tmp_path: Path) -> None:
    """As optimum writes it: MODEL/onnx/model.onnx and MODEL/tokenizer.json."""
    for name in ("onnx", "other"):
        (tmp_path / name).mkdir()
        onnx.save(encoder(), tmp_path / name / "model.onnx")
    write_tokenizer(tmp_path / "tokenizer.json")
    kinds = [_inputs(tmp_path / name / "model.onnx", samples=2).kind for name in ("onnx", "other")]
    assert kinds == ["tokens by frequency", "random tokens"]


def test_what_is_held_out_is_in_no_probe(tmp_path: Path) -> None:
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    inputs = _inputs(tmp_path / "decoder.onnx", samples=4)
    seen, _ = inputs.split()
    short = seen.few_batches(8)[0]["input_ids"]
    assert len(short) == seen.samples == 3
    ids = np.concatenate([batch["input_ids"] for batch in seen.batches])
    assert np.array_equal(short, ids[:, : short.shape[1]])


def test_ids_of_a_user_are_run_as_few_at_a_time_as_written_ones() -> None:
    """The scores of all words take most of the memory."""
    view = load(decoder())
    ids = np.arange(40 * 8).reshape(40, 8) % 64
    given = model_inputs(view, "auto", {"input_ids": ids})
    source = TokenSource(view, token_interface(view))
    assert (
        [len(b["input_ids"]) for b in given.batches]
        == [len(b["input_ids"]) for b in source.batches(ids)]
        == [16, 16, 8]
    )


def test_probes_of_groups_take_a_few_short_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All groups are probed side by side, each with the scores of all words; of large models, on fewer."""
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    onnx.save(encoder(), tmp_path / "encoder.onnx")
    assert _inputs(tmp_path / "decoder.onnx", samples=12).few_batches(8)[0]["input_ids"].shape == (8, 64)
    cost = 64.0 * count_token_macs(load(tmp_path / "decoder.onnx"))
    for budget, count in ((3.5 * cost, 3), (0.5 * cost, 2)):
        monkeypatch.setattr(token_inputs, "_LONGER_COST", budget)
        assert _inputs(tmp_path / "decoder.onnx", samples=12).few_batches(8)[0]["input_ids"].shape == (count, 64)
    given = model_inputs(load(decoder()), "auto", {"input_ids": np.ones((5, 90), np.int64)})
    assert given.few_batches(8)[0]["input_ids"].shape == (4, 32)
    assert _inputs(tmp_path / "encoder.onnx", samples=6).few_batches(8)[0]["input_ids"].shape == (4, 32)


def test_a_fixed_batch_is_filled_whatever_there_is_time_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(model, tmp_path / "decoder.onnx")
    write_tokenizer(tmp_path / "tokenizer.json")
    monkeypatch.setattr(token_plan, "_FEWEST_WRITTEN", 1)
    one = 128 * count_token_macs(load(tmp_path / "decoder.onnx")) / token_plan._WRITTEN_PER_SECOND
    for whole, loose in ((3, 4), (5, 0), (7, 0)):
        inputs = _inputs(tmp_path / "decoder.onnx", samples=8, seconds=(whole + 0.5) * one)
        assert f"{whole} sequences written by the model" in inputs.reason
        read = f"{loose} drawn and read 3 times, " if loose else ""
        assert f", {read}{8 - whole - loose} drawn by frequency" in inputs.reason
        assert np.concatenate([batch["input_ids"] for batch in inputs.batches]).shape == (8, 128)
