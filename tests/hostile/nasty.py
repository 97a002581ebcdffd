"""Names that try to get out of what shows them, and a model in which every name is one."""

from __future__ import annotations

import onnx

from testing import models

#: rich's markup, escape sequences that clear the screen, line breaks of all kinds, marks of direction, HTML, formulas.
NASTY = (
    "[/red][bold]x[link=http://e/]\x1b[2J\r\n\x07\x7f\x85\x9b31m\u2028\u2029\u202e\u2066\u200f<b>$\\frac{$ :warning:"
)


def nasty_model() -> onnx.ModelProto:
    """Return a small network whose nodes, tensors, inputs, outputs, metadata and dimensions have such names."""
    model = models.chain_conv(0)
    renamed: dict[str, str] = {}

    def rename(name: str) -> str:
        return renamed.setdefault(name, f"{name}{NASTY}") if name else ""

    graph = model.graph
    graph.name = NASTY
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = rename(value.name)
    for node in graph.node:
        node.name = f"{node.name}{NASTY}"
        node.doc_string = NASTY
        node.input[:] = [rename(name) for name in node.input]
        node.output[:] = [rename(name) for name in node.output]
    del graph.value_info[:]
    model.producer_name = NASTY
    model.metadata_props.add(key=NASTY, value=NASTY)
    return model
