"""The same network in the forms in which exporters write it: functions from a model to an equal one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable

import numpy as np
import onnx
import onnxruntime as ort
from onnx import NodeProto, TensorProto, helper, numpy_helper


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    return result


def _replace(model: onnx.ModelProto, nodes: Iterable[NodeProto]) -> None:
    fresh = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(fresh)


def constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every weight is a Constant node."""
    result = _copy(model)
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in result.graph.initializer]
    del result.graph.initializer[:]
    _replace(result, [*constants, *result.graph.node])
    return result


def identity_routed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every weight passes through an Identity, as deduplicated weights do."""
    result = _copy(model)
    routes = []
    for tensor in result.graph.initializer:
        routes.append(helper.make_node("Identity", [f"{tensor.name}_stored"], [tensor.name]))
        tensor.name = f"{tensor.name}_stored"
    _replace(result, [*routes, *result.graph.node])
    return result


def listed_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every weight is listed as a graph input, which IR version 3 required."""
    result = _copy(model)
    result.ir_version = 3
    for tensor in result.graph.initializer:
        result.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return result


def model_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every Relu is a call of a model-local function with inner tensors of common names."""
    result = _copy(model)
    body = [
        helper.make_node("Neg", ["a"], ["conv_0_w"]),  # an inner name that the main graph uses for something else
        helper.make_node("Neg", ["conv_0_w"], ["inner"]),
        helper.make_node("Relu", ["inner"], ["b"]),
    ]
    opsets = list(result.opset_import)
    result.functions.append(helper.make_function("tests", "Activation", ["a"], ["b"], body, opsets))
    result.opset_import.append(helper.make_opsetid("tests", 1))
    for node in result.graph.node:
        if node.op_type == "Relu":
            node.op_type, node.domain = "Activation", "tests"
    return result


def computed_reshapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every Flatten is x.view(x.size(0), -1): Shape, Gather, Concat, Reshape."""
    result = _copy(model)
    nodes = []
    for index, node in enumerate(result.graph.node):
        if node.op_type != "Flatten":
            nodes.append(node)
            continue
        shape, size, target = (f"{stem}_{index}" for stem in ("shape", "size", "target"))
        nodes += [
            helper.make_node("Shape", [node.input[0]], [shape]),
            helper.make_node("Gather", [shape, "first"], [size], axis=0),
            helper.make_node("Concat", [size, "rest"], [target], axis=0),
            helper.make_node("Reshape", [node.input[0], target], [node.output[0]], name=node.name),
        ]
    result.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "first"))
    result.graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), "rest"))
    _replace(result, nodes)
    return result


def computed_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights come out of chains over constants: Transpose, CastLike, Shape, and Expand of a zero added to a bias."""
    result = _copy(model)
    chains = []
    for tensor in result.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32:
            continue
        name, stored = tensor.name, f"{tensor.name}_stored"
        if values.ndim > 1:
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values.T), stored))
            chains += [
                helper.make_node("Transpose", [stored], [f"{name}_like"], perm=list(reversed(range(values.ndim)))),
                helper.make_node("CastLike", [f"{name}_like", "x"], [name]),
            ]
        elif values.ndim == 1:
            tensor.name = stored
            chains += [
                helper.make_node("Shape", [stored], [f"{name}_shape"]),
                helper.make_node("Expand", ["zero", f"{name}_shape"], [f"{name}_zeros"]),
                helper.make_node("Add", [stored, f"{name}_zeros"], [name]),
            ]
    result.graph.initializer.append(numpy_helper.from_array(np.float32(0), "zero"))
    _replace(result, [*chains, *result.graph.node])
    return result


def with_dropout(model: onnx.ModelProto) -> onnx.ModelProto:
    """A Dropout and an Identity stand behind every Relu, zero biases behind every Conv without one."""
    result = _copy(model)
    nodes = []
    outputs = {o.name for o in result.graph.output}
    widths = {t.name: t.dims[0] for t in result.graph.initializer}
    for index, node in enumerate(result.graph.node):
        nodes.append(node)
        if node.op_type == "Conv" and len(node.input) == 2:
            zeros = numpy_helper.from_array(np.zeros(widths[node.input[1]], np.float32), f"zeros_{index}")
            result.graph.initializer.append(zeros)
            node.input.append(zeros.name)
        if node.op_type == "Relu" and node.output[0] not in outputs:
            name = node.output[0]
            node.output[0] = f"{name}_raw"
            nodes.append(helper.make_node("Dropout", [f"{name}_raw"], [f"{name}_dropped"]))
            nodes.append(helper.make_node("Identity", [f"{name}_dropped"], [name]))
    _replace(result, nodes)
    return result


def decided_branches(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every Relu stands in a branch that a constant chooses, beside one that is never taken."""
    result = _copy(model)
    result.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    nodes = []
    for node in result.graph.node:
        if node.op_type == "Relu":
            out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
            bodies = (
                helper.make_graph([helper.make_node(op, node.input, ["out"])], op, [], [out]) for op in ("Relu", "Neg")
            )
            branches = dict(zip(("then_branch", "else_branch"), bodies, strict=True))
            nodes.append(helper.make_node("If", ["yes"], node.output, node.name, **branches))
        else:
            nodes.append(node)
    _replace(result, nodes)
    return result


def unused_parts(model: onnx.ModelProto) -> onnx.ModelProto:
    """There are nodes and weights that no output depends on, and metadata."""
    result = _copy(model)
    result.graph.initializer.append(numpy_helper.from_array(np.ones((3, 3), np.float32), "nobody_reads_this"))
    result.graph.node.append(helper.make_node("Relu", ["x"], ["nobody_reads_this_either"]))
    result.graph.value_info.append(helper.make_tensor_value_info("nobody_reads_this_either", TensorProto.FLOAT, None))
    result.metadata_props.add(key="author", value="tests")
    return result


def runtime_optimised(model: onnx.ModelProto) -> onnx.ModelProto:
    """What onnxruntime's optimiser writes: layers and activations are fused into operators of its own."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = f"{folder}/optimised.onnx"
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def frozen_norms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Another network: its convolutions have a factor and a summand per channel behind them, as frozen norms have."""
    result, nodes, random = _copy(model), list[NodeProto](), np.random.default_rng(0)
    channels = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer}
    for node in result.graph.node:
        nodes.append(node)
        if node.op_type != "Conv":
            continue
        output, names = node.output[0], [f"{node.output[0]}_{kind}" for kind in ("plain", "scaled", "factor", "shift")]
        for name in names[2:]:
            values = random.uniform(0.5, 1.5, (1, channels[node.input[1]], 1, 1)).astype(np.float32)
            result.graph.initializer.append(numpy_helper.from_array(values, name))
        node.output[0] = names[0]
        nodes.append(helper.make_node("Mul", [names[0], names[2]], [names[1]]))
        nodes.append(helper.make_node("Add", [names[3], names[1]], [output]))
    _replace(result, nodes)
    return result


def expanded_factors(model: onnx.ModelProto) -> onnx.ModelProto:
    """What a Relu gives is multiplied by a factor that takes its shape first, as by torch's `expand_as`."""
    result, nodes = _copy(model), []
    for node in result.graph.node:
        nodes.append(node)
        if node.op_type == "Relu":
            y, raw = node.output[0], f"{node.output[0]}_raw"
            node.output[0] = raw
            nodes.append(helper.make_node("Shape", [raw], [f"{y}_shape"]))
            nodes.append(helper.make_node("Expand", ["factor", f"{y}_shape"], [f"{y}_factors"]))
            nodes.append(helper.make_node("Mul", [raw, f"{y}_factors"], [y]))
    result.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "factor"))
    _replace(result, nodes)
    return result


FORMS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    f.__name__: f
    for f in (
        constant_nodes,
        identity_routed,
        listed_weights,
        model_functions,
        computed_reshapes,
        computed_weights,
        with_dropout,
        decided_branches,
        unused_parts,
    )
}
