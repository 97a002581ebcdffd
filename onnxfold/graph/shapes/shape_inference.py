"""Shape inference without large weights, at a cost that does not depend on the model's size."""

import contextlib
import faulthandler
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, TensorShapeProto, helper, numpy_helper

from onnxfold.errors import VerificationError
from onnxfold.graph.nodes import DEFAULT_DOMAINS, canonical_domain, refill, subgraphs
from onnxfold.graph.run import runtime
from onnxfold.graph.shapes.foreign_types import result_types
from onnxfold.graph.tensors import Array, TensorType, Weight, known_dimensions, loaded, to_proto, type_of

#: Operators that onnx tells no shapes of (those of onnxruntime's optimiser, and functions whose bodies it cannot
#: follow), and the operator, with its number of inputs, whose result has the same shape. onnxruntime is asked for
#: others, which takes longer.
_SHAPED_AS = dict.fromkeys((
    "BiasGelu", "FastGelu", "Gelu", "GroupNormalization", "QuickGelu", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
    "HardSwish",  # made by exports of models below operator set 14
), ("Identity", 1)) | {"FusedConv": ("Conv", 3), "FusedGemm": ("Gemm", 3), "FusedMatMul": ("MatMul", 2)}  # fmt: skip
#: The output of those that also give their sum out, of the same shape.
_SUM = 3
#: Operators of which onnx tells some results only.
_HALF_TOLD = frozenset({"Attention"})
#: How the symbols begin that onnx's inference makes up.
_MADE_UP = "unk__"
#: How those begin that stand here for dimensions of inputs without a symbol.
UNNAMED = f"{_MADE_UP}input_"

#: The operator set from which on onnx lets the axis of a Concat be negative.
_NEGATIVE_AXES = 11

#: Operators that leave a negative size where an axis is shorter than their window.
_WINDOWS = frozenset({"AveragePool", "Conv", "LpPool", "MaxPool"})

#: Names that exporters give every free dimension.
_NO_SYMBOLS = frozenset({"?", "-1", "None", "none", "unk", "unknown", "dynamic"})

#: Integer initializers up to this many elements travel with their values: they hold shapes and axes.
_SMALL = 4096
#: Tensors of rank 1 that are longer than this hold no shapes.
_LONG = 1 << 20


def infer_types(
    model: ModelProto, weights: Mapping[str, Weight], input_shapes: Mapping[str, Sequence[int | None]],
    learned: Mapping[str, TensorType],
) -> dict[str, TensorType]:  # fmt: skip
    """Return element type and dimensions of every tensor that ONNX's shape inference finds."""
    work = light_model(model, weights, input_shapes)
    sources = {*weights, *(i.name for i in work.graph.input)}
    sizes: dict[str, int] = {}  # of the symbols of inputs that have a shape
    for info in model.graph.input:
        pairs = zip(info.type.tensor_type.shape.dim, input_shapes.get(info.name, ()), strict=False)
        sizes |= {dim.dim_param: int(size) for dim, size in pairs if dim.dim_param and size is not None}
    refill(work.graph.node, (made for node in work.graph.node for made in _stand_ins(node)))
    work = _declaring(work, {
        name: (kind, tuple(sizes.get(s) if d is None else d for d, s in zip(shape, symbols, strict=True)), symbols)
        for name, (kind, shape, symbols) in learned.items() if name not in sources
    })  # fmt: skip
    functions = {(f.domain, f.name) for f in work.functions}
    foreign = [n for n in work.graph.node if _is_foreign(n) and (n.domain, n.op_type) not in functions]
    return _infer_with_runtime(work, foreign, weights) if foreign else read_types(_infer_shapes(work))


def light_model(
    model: ModelProto, weights: Mapping[str, Weight], input_shapes: Mapping[str, Sequence[int | None]]
) -> ModelProto:
    """Return a model with that of its weights which shapes depend on, and a symbol for every free size of an input."""
    work = deepcopy(model)
    drop_inferable(work)
    sources = {*weights, *(i.name for i in work.graph.input)}
    for output in work.graph.output:
        if output.type.HasField("tensor_type") and output.name not in sources:
            output.type.tensor_type.ClearField("shape")
    for name, weight in weights.items():
        values = _value(weight)
        stub = TensorProto(name=name, dims=weight.shape, data_type=type_of(weight), data_location=TensorProto.EXTERNAL)
        stub.external_data.add(key="location", value="stub")
        work.graph.initializer.append(stub if values is None else to_proto(name, values))
    for number, info in enumerate(work.graph.input):
        dims = info.type.tensor_type.shape.dim
        if info.name in input_shapes:
            declared = [*dims, *(TensorShapeProto.Dimension() for _ in input_shapes[info.name][len(dims) :])]
            sizes = zip(input_shapes[info.name], declared, strict=False)
            refill(dims, [dim if d is None else TensorShapeProto.Dimension(dim_value=int(d)) for d, dim in sizes])
        # onnx follows symbols further than dimensions without a name; PaddlePaddle writes -1 for those.
        for axis, dim in enumerate(dims):
            if dim.dim_value < 0 or dim.dim_param in _NO_SYMBOLS or not (dim.dim_param or dim.HasField("dim_value")):
                dim.dim_param = f"{UNNAMED}{number}_{axis}"
    return work


def read_types(inferred: ModelProto, names: Collection[str] | None = None) -> dict[str, TensorType]:
    """Return the types that a model states, of all tensors or of some."""
    infos = [*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output]
    chosen = (info for info in infos if names is None or info.name in names)
    return {info.name: declared_type(info) for info in chosen if info.type.tensor_type.HasField("shape")}


def _infer_with_runtime(
    work: ModelProto, foreign: Sequence[NodeProto], weights: Mapping[str, Weight]
) -> dict[str, TensorType]:
    """Return types where onnxruntime is asked for results of some nodes; inference and questions take turns."""
    # Nodes that differ in nothing but names are taken to give the same until it is known what they read. Symbols that
    # inference makes up have other names every time, so that they are no news.
    answers: dict[str, TensorType] = {}
    inferred, read = work, {name for node in foreign for name in node.input}
    constant = {name: weight for name, weight in weights.items() if name in read}
    held = {name: (type_of(w), tuple(w.shape), ("",) * len(w.shape)) for name, w in constant.items()}
    for _ in range(2 * len(foreign) + 2):  # every turn settles a node at least
        inferred = _infer_shapes(_declaring(work, answers))
        types = read_types(inferred, read) | held
        fresh: dict[str, TensorType] = {}
        alike: dict[tuple[str, str, bytes], list[TensorType | None]] = {}
        for node in foreign:
            inputs = [types.get(name) for name in node.input]
            key = node.domain, node.op_type, b"".join(a.SerializeToString(deterministic=True) for a in node.attribute)
            if all(kind is not None for name, kind in zip(node.input, inputs, strict=True) if name):
                constants = {i: v for i, n in enumerate(node.input) if (v := _value(constant.get(n))) is not None}
                alike[key] = result_types(node, inputs, constants, work)
            results = alike.get(key, [None] * len(node.output))
            fresh.update({o: kind for o, kind in zip(node.output, results, strict=False) if o and kind is not None})
        if _drop_made_up_symbols(fresh) == _drop_made_up_symbols(answers):
            break
        answers = fresh
    return read_types(inferred)


def _drop_made_up_symbols(types: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """Return types without the symbols that inference makes up."""
    return {
        name: (elem_type, shape, tuple("" if s.startswith(_MADE_UP) else s for s in symbols))
        for name, (elem_type, shape, symbols) in types.items()
    }


def _is_foreign(node: NodeProto) -> bool:
    """Whether onnxruntime tells the result of an operator, and onnx does not."""
    if any(True for _ in subgraphs(node)) or not runtime.runs(node.domain, node.op_type):
        return False
    if node.domain in DEFAULT_DOMAINS and node.op_type in _HALF_TOLD:
        return True
    return not onnx.defs.has(node.op_type, canonical_domain(node.domain))


def _declaring(work: ModelProto, kinds: Mapping[str, TensorType]) -> ModelProto:
    """Return a model with types of some tensors."""
    declared = deepcopy(work)
    outputs = {output.name: output for output in declared.graph.output}
    for name, kind in kinds.items():
        info = outputs.get(name) or declared.graph.value_info.add()
        info.CopyFrom(helper.make_tensor_value_info(name, kind[0], known_dimensions(kind)))
    return declared


def _value(weight: Weight | None) -> Array | None:
    """Return the values of a weight of which shapes may depend, None for others."""
    return loaded(weight) if weight is not None and values_matter(type_of(weight), weight.size) else None


def drop_inferable(model: ModelProto) -> None:
    """Drop value_info, which may be stale or simply wrong; of other vendors' operators it is all there is to know."""
    local = {f.domain for f in model.functions}
    others = (n for n in model.graph.node if n.domain not in (*local, *DEFAULT_DOMAINS))
    foreign = {o for n in others if not _has_stand_in(n) and not _is_foreign(n) for o in n.output}
    refill(model.graph.value_info, (info for info in model.graph.value_info if info.name in foreign))


def _has_stand_in(node: NodeProto) -> bool:
    return node.domain in (*DEFAULT_DOMAINS, "com.microsoft") and node.op_type in _SHAPED_AS


def _stand_ins(node: NodeProto) -> list[NodeProto]:
    """Return nodes that onnx knows in place of an operator, with results of the same shapes."""
    turned = any(a.name.startswith("trans") and a.i for a in node.attribute)
    if not _has_stand_in(node) or (turned and node.op_type == "FusedMatMul"):
        return [node]
    op_type, inputs = _SHAPED_AS[node.op_type]
    known = onnx.defs.get_schema(op_type).attributes
    kept = [a for a in node.attribute if a.name in known]
    results = [node.output[0], *filter(None, node.output[_SUM:])]
    return [NodeProto(op_type=op_type, input=node.input[:inputs], output=[o], attribute=kept) for o in results]


def _infer_shapes(work: ModelProto) -> ModelProto:
    """Return the model with the shapes that ONNX infers, or unchanged if the inference fails."""
    done = _inferred_once(work)
    while _count_from_front(work, done):
        done = _inferred_once(work)
    return done


def _count_from_front(work: ModelProto, inferred: ModelProto) -> bool:
    """Count axes of Concat from the front where a rank is known now; return whether there was such an axis."""
    # Before version 11 of the operator set onnx infers nothing for a negative axis, which PaddlePaddle writes.
    if max((o.version for o in work.opset_import if o.domain in DEFAULT_DOMAINS), default=0) >= _NEGATIVE_AXES:
        return False
    concats = [node for node in work.graph.node if node.op_type == "Concat" and node.domain in DEFAULT_DOMAINS]
    ranks = {name: len(kind[1]) for name, kind in read_types(inferred).items()}
    ranks |= {tensor.name: len(tensor.dims) for tensor in work.graph.initializer}
    counted = False
    for node, attr in ((n, attr) for n in concats for attr in n.attribute if attr.name == "axis"):
        rank = next((ranks[name] for name in node.input if name in ranks), 0)
        if -rank <= attr.i < 0:
            attr.i += rank
            counted = True
    return counted


def _inferred_once(work: ModelProto) -> ModelProto:
    """Return the model with the shapes that ONNX infers at the first try, or unchanged if the inference fails."""
    # onnx propagates the values of every tensor of rank 1, of any length: of long ones it is left out.
    if _has_large_numbers(work):
        plain = _try_to_infer(work)
        if plain is None:
            return work
        infos = (*plain.graph.input, *plain.graph.value_info, *plain.graph.output)
        if any(_is_long(info.type.tensor_type.shape.dim) for info in infos):
            return plain
    return _try_to_infer(work, data_prop=True) or _try_to_infer(work) or work  # the second one is more forgiving


def _try_to_infer(work: ModelProto, **options: bool) -> ModelProto | None:
    """Infer shapes, in a fork where onnx may end the process: at a Slice of a size that a window made negative."""
    kinds = {node.op_type for node in work.graph.node}
    try:
        if not ("Slice" in kinds and kinds & _WINDOWS and hasattr(os, "fork")):
            return onnx.shape_inference.infer_shapes(work, **options)
        source, sink = os.pipe()
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                faulthandler.disable()
                os.close(2)
                os.write(sink, onnx.shape_inference.infer_shapes(work, **options).SerializeToString())
            os._exit(0)
        os.close(sink)
        with open(source, "rb") as pipe:
            inferred = ModelProto.FromString(pipe.read())
        status = os.waitpid(child, 0)[1]
    except Exception:  # the C++ code raises many types
        return None
    if os.WIFSIGNALED(status):  # as onnxruntime would where it loads the model
        raise VerificationError(
            "the sizes of the network do not fit together: a window is longer than the axis that it slides along; give "
            "sizes that the network is meant for, --input-shapes"
        )
    return inferred if inferred.graph.node else None


def _has_large_numbers(work: ModelProto) -> bool:
    """Whether an integer constant, or a dimension of an input, is large enough to be a long tensor's length."""
    if any(_is_long(info.type.tensor_type.shape.dim) for info in work.graph.input):
        return True
    lifted = (a.t for n in work.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value")
    for tensor in (*work.graph.initializer, *lifted):
        if tensor.data_type in (TensorProto.INT64, TensorProto.INT32) and tensor.data_location != TensorProto.EXTERNAL:
            numbers = numpy_helper.to_array(tensor)
            # The largest ones stand for "to the end" in slices.
            if ((numbers > _LONG) & (numbers < np.iinfo(numbers.dtype).max >> 1)).any():
                return True
    return False


def _is_long(dims: Sequence[TensorShapeProto.Dimension]) -> bool:
    return len(dims) == 1 and dims[0].dim_value > _LONG


def values_matter(elem_type: int, size: int) -> bool:
    """Whether shape inference sees the values of an initializer, and not only its type and shape."""
    if elem_type in (TensorProto.INT64, TensorProto.INT32):
        return size <= _SMALL
    return size <= 16 and elem_type != TensorProto.STRING  # scales of Resize, scalars


def declared_type(info: onnx.ValueInfoProto) -> TensorType:
    """Return the type that a graph states of a tensor; a dimension without a number is None."""
    tensor = info.type.tensor_type
    dims = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in tensor.shape.dim)
    return int(tensor.elem_type), dims, tuple(d.dim_param for d in tensor.shape.dim)


def symbolic_types(model: ModelProto, weights: Mapping[str, Weight], names: Collection[str]) -> dict[str, TensorType]:
    """Return the types that onnxruntime's symbolic inference finds; none without sympy, or where it fails."""
    types: dict[str, TensorType] = {}
    # It is a tool of onnxruntime, with no stable interface, and stops with an assertion at what it does not know.
    with contextlib.suppress(Exception, SystemExit):
        from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

        logging.getLogger("onnxruntime.tools.symbolic_shape_infer").setLevel(logging.CRITICAL)
        light = _turn_stubs_into_inputs(light_model(model, weights, {}))
        inference = SymbolicShapeInference(2**31 - 1, False, False, 0)
        inference._preprocess(light)
        with contextlib.suppress(Exception):  # what it knows until then holds
            while inference.run_:
                inference._infer_impl()
        types = read_types(inference.out_mp_)
    lost = _without_their_length(model.graph.node, types)
    return {
        name: (elem_type, shape, tuple(s if s in names else "" for s in symbols))
        for name, (elem_type, shape, symbols) in types.items()
        if elem_type and name not in lost
    }


def _without_their_length(nodes: Iterable[NodeProto], types: Mapping[str, TensorType]) -> set[str]:
    """Return tensors that follow from a Reshape to another rank than its target has numbers.

    The tool loses a number that was reshaped to a scalar: PP-OCRv6 came out with a target of three for four axes.
    """
    wrong: set[str] = set()
    for node in nodes:
        is_wrong = not wrong.isdisjoint(node.input)
        if node.op_type == "Reshape":
            target, result = (types.get(name, (0, None, ()))[1] for name in (node.input[1], node.output[0]))
            is_wrong |= bool(target) and result is not None and target not in ((None,), (len(result),))
        wrong.update(node.output if is_wrong else ())
    return wrong


def _turn_stubs_into_inputs(model: ModelProto) -> ModelProto:
    """Return a model whose weights without values are inputs: the tool reads values of weights."""
    stubs = [t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    refill(model.graph.initializer, (t for t in model.graph.initializer if t.data_location != TensorProto.EXTERNAL))
    listed = {info.name for info in model.graph.input}
    infos = (helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in stubs if t.name not in listed)
    model.graph.input.extend(infos)
    return model
