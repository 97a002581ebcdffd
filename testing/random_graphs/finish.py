"""Outputs of a graph, and the model that computes them."""

from __future__ import annotations

import math

import onnx
from onnx import helper

from testing.random_graphs.common import MAX_ELEMENTS, MICROSOFT, UNKNOWN_TO_ONNX, GeneratorError
from testing.random_graphs.network import Network


def finish(g: Network) -> onnx.ModelProto:
    """Let every loose end come to an output: the last ones of their own, the others together."""
    leaves = g.leaves()
    outputs = [
        g.layer(leaf) if g.chance(0.75) and math.prod(g.shapes[leaf]) <= MAX_ELEMENTS else leaf
        for leaf in leaves[-g.integer(1, 3) :]
    ]
    others = [leaf for leaf in leaves if leaf not in leaves[-3:]][:6]
    flat = []
    for leaf in others:
        while len(g.shapes[leaf]) > 1 and math.prod(g.shapes[leaf]) > 64:
            leaf = g.reduce("ReduceMean", leaf, [len(g.shapes[leaf])], 0)
        flat.append(g.flatten(leaf))
    if flat:
        outputs.append(g.gemm(g.concat(flat, 1) if len(flat) > 1 else flat[0], 3))
    if g.chance(0.1):
        inner = [p for p in g.pool if p not in outputs and any(p in n.output for n in g.nodes)]
        outputs += [g.choice(inner)] if inner else []
    outputs = list(dict.fromkeys(outputs))[:3]
    return _trimmed_model(g, outputs)


def _trimmed_model(g: Network, outputs: list[str]) -> onnx.ModelProto:
    """Drop what no output needs, and write the rest down."""
    needed, kept = set(outputs), []
    for node in reversed(g.nodes):
        if needed & set(node.output):
            needed |= set(node.input)
            kept.append(node)
    nodes = kept[::-1]
    initializers = [t for t in g.initializers if t.name in needed]
    inputs = [i for i in g.inputs if i.name in needed]
    if not inputs:
        raise GeneratorError
    if g.chance(0.1):  # as old exporters do: weights listed as inputs with defaults
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in initializers]
    kind = helper.np_dtype_to_tensor_dtype(g.dtype)
    batch = g.batch or "batch"
    infos = [helper.make_tensor_value_info(o, kind, [batch, *g.shapes[o]]) for o in outputs]
    foreign = [
        helper.make_tensor_value_info(o, kind, [batch, *g.shapes[o]])
        for n in nodes if (n.domain or n.op_type in UNKNOWN_TO_ONNX) for o in n.output if o and o not in outputs
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "fuzz", inputs, infos, initializers, value_info=foreign)
    opsets = [helper.make_opsetid("", g.opset)]
    if any(n.domain for n in nodes):
        opsets.append(helper.make_opsetid(MICROSOFT, 1))
    ir_version = 8 if g.opset < 19 else 10
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, producer_name="fuzz")
