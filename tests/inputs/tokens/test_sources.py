"""Where the tokenizer of a model lies, and which of its inputs are held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from onnxfold.graph.load import load
from onnxfold.inputs.model_inputs import ModelInputs, model_inputs
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens.interface import token_interface
from testing.language_models import decoder, encoder, write_tokenizer


def _inputs(path: Path, samples: int) -> ModelInputs:
    return model_inputs(load(path), "auto", source=path, samples=samples)


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
    short = seen.few(8)["input_ids"]
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
