"""Inputs of a model whose interface changed."""

from collections.abc import Mapping
from dataclasses import replace

from onnxfold.graph.tensors import Array
from onnxfold.inputs.model_inputs import ModelInputs


def renamed_inputs(inputs: ModelInputs, names: Mapping[str, str]) -> ModelInputs:
    """Return the same inputs under other names."""

    def batch(values: dict[str, Array]) -> dict[str, Array]:
        return {new: array for name, array in values.items() if (new := names.get(name, name))}

    short = None if inputs.short is None else batch(inputs.short)
    answers = inputs.answers
    if answers is not None:
        answers = replace(answers, states=tuple(new for name in answers.states if (new := names.get(name, name))))
    return replace(inputs, batches=[batch(values) for values in inputs.batches], short=short, answers=answers)
