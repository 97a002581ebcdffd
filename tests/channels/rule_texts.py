"""What every channel rule declares about the nodes of the test models, as text: a file per function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

import numpy as np
from onnx import NodeProto, defs

from onnxfold.channels.context import NodeContext, find_rule
from onnxfold.channels.declarations import (
    Apart,
    Axis,
    Block,
    Count,
    Declaration,
    EqualBlocks,
    Link,
    Norm,
    Positions,
    Repeat,
    Rotatable,
    Select,
    Use,
)
from onnxfold.channels.walker import declare_node
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from testing.rule_models.table import RULE_MODELS

#: Parameters of operators of onnxruntime, which onnx has no schema of, in the order of inputs and of outputs.
_FOREIGN = {
    "Attention": ("x weights bias mask past addend", "y present"),
    "BiasGelu": ("x bias", "y"),
    "EmbedLayerNormalization": ("ids segments words places kinds gamma beta", "y mask"),
    "FusedConv": ("x w b z", "y"),
    "FusedGemm": ("a b c", "y"),
    "FusedMatMul": ("a b", "y"),
    "GroupQueryAttention": (
        "query key value past_key past_value lengths total cosines sines places addend sinks",
        "y present_key present_value",
    ),
    "MatMulNBits": ("a b scales zeros", "y"),
    "MultiHeadAttention": ("query key value bias mask addend past_key past_value", "y present_key present_value"),
    "RotaryEmbedding": ("x places cosines sines", "y"),
    "SkipLayerNormalization": ("x skip gamma beta bias", "y mean deviation sum"),
    "SkipSimplifiedLayerNormalization": ("x skip gamma bias", "y mean deviation sum"),
    "SimplifiedLayerNormalization": ("x scale", "y"),
}


def rule_texts() -> dict[str, str]:
    """Return by rule what it declares: a paragraph per different answer, the operators that give it above.

    A paragraph begins with the shapes of the first node that the answer was given for; ``*`` marks a weight.
    """
    paragraphs: dict[str, dict[str, dict[str, tuple[str, str]]]] = {}
    for name, build in RULE_MODELS.items():
        for rule, operator, shapes, answer in _answers(load(build())):
            same = paragraphs.setdefault(rule, {}).setdefault(answer, {})
            same.setdefault(operator, (name, shapes))
    return {rule: "\n".join(_paragraphs(answers)) for rule, answers in sorted(paragraphs.items())}


def _paragraphs(answers: dict[str, dict[str, tuple[str, str]]]) -> Iterator[str]:
    for answer, operators in sorted(answers.items(), key=lambda item: min(item[1])):
        by_shapes = groupby(sorted(operators), key=lambda operator: operators[operator][1])
        first = operators[min(operators)]
        heads = [f"{', '.join(same)}: {shapes}" for shapes, same in by_shapes]
        yield "\n".join([*heads, f"  in the test model {first[0]}", answer, ""])


def _answers(view: GraphView) -> Iterator[tuple[str, str, str, str]]:
    """Yield rule, operator, shapes and declarations of every node that has a rule."""
    live: set[Axis] = set()
    for node in view.nodes:
        rule = find_rule(node.domain, node.op_type, view.opset(node.domain))
        declared = declare_node(NodeContext(view, node, live))
        if rule is not None and declared:
            names = _parameter_names(view, node)
            answer = "\n".join(dict.fromkeys(f"  {line}" for line in _lines(view, declared, names)))
            operator = f"{node.domain.removeprefix('com.')}{'.' if node.domain else ''}{node.op_type}-{rule.since}"
            yield rule.declare.__name__, operator, _shapes(view, node, names), answer


def _parameter_names(view: GraphView, node: NodeProto) -> dict[str, str]:
    """Return what a node's tensors are called in the operator's schema."""
    if defs.has(node.op_type, view.opset(node.domain), node.domain):
        schema = defs.get_schema(node.op_type, view.opset(node.domain), node.domain)
        inputs, outputs = ([p.name for p in side] for side in (schema.inputs, schema.outputs))
    else:
        inputs, outputs = (part.split() for part in _FOREIGN.get(node.op_type, ("x bias", "y")))
    names: dict[str, str] = {}
    for tensors, formal in ((node.output, outputs), (node.input, inputs)):
        for place, tensor in enumerate(tensors):
            variadic = len(tensors) > len(formal) and place >= len(formal) - 1
            names[tensor] = f"{formal[-1]}{place - len(formal) + 1}" if variadic else formal[place]
    return names


def _shapes(view: GraphView, node: NodeProto, names: dict[str, str]) -> str:
    def side(tensors: list[str]) -> str:
        return ", ".join(f"{names[t]}{'*' * view.is_weight(t)} {_shape(view, t)}" for t in tensors if t)

    return f"{side(list(node.input))} -> {side(list(node.output))}"


def _shape(view: GraphView, tensor: str) -> str:
    shape = view.shape(tensor)
    return "?" if shape is None else "x".join("N" if d is None else str(d) for d in shape) or "scalar"


def _lines(view: GraphView, declared: list[Declaration], names: dict[str, str]) -> Iterator[str]:
    """Yield a line per declaration; a use implies its link, and axes that stay for one reason share a line."""

    def on(axis: Axis | None, positions: Positions | None = None) -> str:
        if axis is None:
            return "nothing"
        blocks = f"/{axis.blocks}" if axis.blocks > 1 else ""
        width = ((view.shape(axis.tensor) or ())[axis.axis] or 0) * axis.blocks
        return f"{names[axis.tensor]}.{axis.axis}{blocks}{_places(positions, width)}"

    used = {f"link {on(d.axis)} = {on(d.channels)}" for d in declared if isinstance(d, Use)}
    shared: dict[str, list[str]] = {}
    for d in declared:
        if isinstance(d, Block | Rotatable):
            words = f"block {{}}: {d.reason}" if isinstance(d, Block) else "rotatable {}"
            shared.setdefault(words, []).append(on(d.axis))
        elif (line := _line(d, on)) not in used:
            yield line
    for words, axes in shared.items():
        yield words.format(", ".join(dict.fromkeys(axes)))


def _line(declaration: Declaration, on: Callable[..., str]) -> str:
    match declaration:
        case Link(a, b, places_a, places_b):
            return f"link {on(a, places_a)} = {on(b, places_b)}"
        case Use(axis, role, _, channels):
            return f"use {on(axis)} as {role.value} of {on(channels)}"
        case EqualBlocks(axis, blocks, _, averaged):
            return f"equal {on(axis)} in {blocks} parts{', averaged' * averaged}"
        case Repeat(source, result, places, of_result):
            return f"repeat {on(source, places)} as {on(result, of_result)}"
        case Apart(axis):
            return f"apart {on(axis)}"
        case Norm(sources, result, _, scale, shift, bias, centred):
            summed = " + ".join(map(on, sources))
            rest = f"scale {on(scale)}, shift {on(shift)}, bias {on(bias)}{', centred' * centred}"
            return f"norm {summed} to {on(result)}, {rest}"
        case Count(_, axis, start, stop, place, element, each):
            place = place if isinstance(place, str) else f"input {place}"
            part = "" if element is None else f"[{element}]"
            return f"count {on(axis)}[{start}:{stop}]{f' by {each}' if each > 1 else ''} in {place}{part}"
        case Select(_, axis, source, index):
            return f"select {on(source)} for {on(axis)} in input {index}"
    raise AssertionError(declaration)


def _places(positions: Positions | None, width: int) -> str:
    """Return positions as ranges, nothing for all in their order: ``[0:6 by 2]`` is 0, 0, 1, 1, ..., 5, 5."""
    if positions is None or np.array_equal(positions, np.arange(width)):
        return ""
    size = len(positions)
    every = max(n for n in range(1, size + 1) if size % n == 0 and (positions == np.repeat(positions[::n], n)).all())
    places = positions[::every]
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    texts = (f"{run[0]}:{run[-1] + 1}" if len(run) > 1 else str(run[0]) for run in runs)
    counted = ((text, len(list(same))) for text, same in groupby(texts))
    listed = " ".join(f"{text} * {times}" if times > 1 else text for text, times in counted)
    return f"[{listed}{f' by {every}' if every > 1 else ''}]"
