"""Inputs of networks by options, in tests."""

from typing import Any

from onnxfold.graph.view import GraphView
from onnxfold.inputs import make_inputs
from onnxfold.inputs.given_samples import Given, UserSources
from onnxfold.inputs.input_plan import InputRequest
from onnxfold.inputs.model_inputs import ModelInputs

_OF_SOURCES = ("scale", "source", "tokenizer", "adds_text")
_OF_REQUESTS = ("samples", "seconds", "steps", "seed")


def model_inputs(view: GraphView, kind: str, given: Given | None = None, **options: Any) -> ModelInputs:
    """Return inputs, of options that stand for sources and for a request."""
    sources = UserSources(given, **{name: options.pop(name) for name in _OF_SOURCES if name in options})
    request = InputRequest(**{name: options.pop(name) for name in _OF_REQUESTS if name in options})
    return make_inputs.model_inputs(view, kind, sources, request, **options)
