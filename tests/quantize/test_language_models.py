"""Language models in int8: caches stay in float32, and names that the quantiser gives are free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfold.graph.load import load
from onnxfold.graph.quantized import is_quantized
from onnxfold.graph.session import Session
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens.feeds import token_feeds
from onnxfold.inputs.tokens.interface import TokenInput, token_interface
from onnxfold.quantize.quantize import quantize_int8
from testing.genai_models import genai_decoder
from testing.language_models import decoder, encoder, grouped_query_decoder
from testing.models import mlp, random_input

MODELS = {
    "decoder": decoder(),
    "encoder": encoder(),
    "grouped_query": grouped_query_decoder(),
    "genai": genai_decoder("packed"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_language_model_in_int8_keeps_its_answers_behind_a_past(name: str) -> None:
    view = load(MODELS[name])
    interface = token_interface(view)
    source = TokenSource(view, interface)
    ids = np.random.default_rng(0).integers(0, interface.vocabulary, (8, 16))
    made = quantize_int8(view, source.batches(ids))
    assert any(map(is_quantized, made.view.nodes))
    assert made.float_weights < 0.1 * made.weights
    states = np.random.default_rng(1)

    def values(one: TokenInput, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return (0.5 * states.standard_normal(shape)).astype(one.dtype)

    feeds = token_feeds(interface, ids[:1, :1], values, past=5 if "past" in str(view.input_names) else 0)
    whole, integer = (session.run(feeds)[0] for session in (Session(MODELS[name]), Session(made.view)))
    assert np.square(integer - whole).sum() < 0.2 * np.square(whole).sum()


def test_names_that_the_quantiser_gives_are_free() -> None:
    """A weight is called as the scale of an activation, and another as the integers of a weight."""
    model = mlp(0)
    view, feeds = load(model), random_input(model, 1, batch=16)
    weights = [name for name in view.weights if view.weights[name].shape]
    renamed = {weights[0]: f"{view.nodes[0].output[0]}_scale", weights[1]: f"{weights[0]}_quantized"}
    renamed[weights[1]] = f"{renamed[weights[0]]}_quantized"
    view.rename_inputs(renamed)
    view.rename_weights(lambda name: renamed.get(name, name))
    made = quantize_int8(view, [feeds])
    expected = quantize_int8(load(model), [feeds])
    for one, other in zip(Session(made.view).run(feeds), Session(expected.view).run(feeds), strict=True):
        np.testing.assert_array_equal(one, other)
