"""Single operators in onnxruntime, and addends between them: for walks that read or change a network inside."""

from collections.abc import Collection, Mapping

import numpy as np
import onnxruntime as ort
from onnx import NodeProto, TensorProto, helper

from onnxfold.errors import VerificationError
from onnxfold.graph.nodes import DEFAULT_DOMAINS, attribute, model_of, node_key, read_names, rewritten, subgraphs
from onnxfold.graph.run.loops import limit_run, open_loop
from onnxfold.graph.run.runtime import session_options
from onnxfold.graph.tensors import Array, LazyTensor, Weight, elem_type_of, to_proto
from onnxfold.graph.view import GraphView

#: Weights from this size on are inputs of the one-node model. A weight inside it would be held several times: in its
#: protobuf message, in the serialized model and in onnxruntime.
_FED_BYTES = 64 << 20
#: Operators whose weights are inputs whatever their size, so that nodes with other weights can share a session. Kernels
#: of other operators want some of them to be constant, or prepare them (MatMul), which changes how sums are rounded.
_FED_OPERATORS = frozenset({"Add", "BatchNormalization", "Conv", "Div", "Mul", "Sub"})
#: Convolutions with weights from so many numbers on get a session of their own, in which onnxruntime packs the weight
#: and computes in blocks of channels: twice as fast. Depthwise ones of any size do, too: two to ten times as fast.
#: Below, and for 1x1 and other grouped ones, reordering costs more.
_PACKED_NUMBERS = 4096
#: Sessions that are kept; each has threads of its own, all asleep but those of one.
_KEPT = 16


class NodeSessions:
    """Sessions of one-node models of a graph. Nodes that differ in nothing but names and weights share one.

    Opening a session takes ten times as long as running a small node: walks of copies of a graph share them, too.
    """

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._kept = view.node_sessions
        self._opsets = tuple((opset.domain, opset.version) for opset in view.model.opset_import)
        self.opened = 0  # how many were

    def shared(self, node: NodeProto, feeds: Mapping[str, Array]) -> ort.InferenceSession:
        """Return a session for a node that reads nothing but `feeds`; it takes and gives values in the node's order."""
        alike = _drop_names(node)
        kinds = tuple((v.dtype.str, np.ndim(v)) for v in feeds.values())
        key = alike.SerializeToString(deterministic=True), kinds, self._opsets
        if key not in self._kept:
            names = dict.fromkeys(filter(None, alike.input))
            # What a session that stays has allocated would stay allocated.
            self._kept[key] = self.own(alike, dict(zip(names, feeds.values(), strict=True)), keeps_memory=False)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def own(
        self, node: NodeProto, feeds: Mapping[str, Array], constants: Collection[str] = (), *,
        keeps_memory: bool = True, packs: bool = False,
    ) -> ort.InferenceSession:  # fmt: skip
        """Return a session for one node alone, which holds the weights `constants` of the graph; packed if `packs`."""
        sizes = node.input[1:] if node.op_type == "Resize" else ()  # as many as axes, and onnxruntime wants to know
        dims = {n: list(np.shape(v)) if n in sizes else [None] * np.ndim(v) for n, v in feeds.items()}
        inputs = [helper.make_tensor_value_info(n, elem_type_of(v), dims[n]) for n, v in feeds.items()]
        model = model_of([node], inputs, [to_proto(n, self._view.weight(n)) for n in constants], self._view.model)
        level = ort.GraphOptimizationLevel
        options = session_options(level.ORT_ENABLE_ALL if packs else level.ORT_DISABLE_ALL)
        options.enable_cpu_mem_arena = keeps_memory
        self.opened += 1
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class NodeRunner:
    """Runs one node of a graph on batches of inputs; weights come from the graph."""

    def __init__(self, view: GraphView, node: NodeProto, sessions: NodeSessions | None = None) -> None:
        self._view = view
        self._node = node
        self._sessions = sessions or NodeSessions(view)
        self._session: ort.InferenceSession | None = None
        names = read_names(node)
        weights = {n: weight for n in names if (weight := view.find_weight(n)) is not None}
        self.inputs = [n for n in names if n not in weights]
        self._packs = self._is_packed()
        large = {} if self._packs else {n: self._fed_values(weight) for n, weight in weights.items()}
        self._fed = {n: values for n, values in large.items() if values is not None}
        self._constants = [n for n in weights if n not in self._fed]
        self._loop = open_loop(view, [node])
        self._outputs = [o for o in node.output if o]
        self._name = node.name or node_key(node)
        # What has a seed draws numbers of its own; bodies hold names of tensors.
        has_state = attribute(node, "seed") is not None or next(subgraphs(node), None) is not None
        self._shares = not (self._constants or has_state)

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """Return the node's outputs by name."""
        arrays = {n: feeds[n] for n in self.inputs} | self._fed
        if any(isinstance(values, list) for values in arrays.values()):
            raise VerificationError(
                f"node '{self._name}' reads a sequence of tensors, which no run node by node hands on"
            )
        try:
            if self._shares:
                arrays = {n: arrays[n] for n in self._node.input if n}
                self._session = self._session or self._sessions.shared(self._node, arrays)
                arrays = {f"i{i}": values for i, values in enumerate(arrays.values())}
            elif self._session is None:
                self._session = self._sessions.own(self._node, arrays, self._constants, packs=self._packs)
            with limit_run(self._loop) as options:
                values = self._session.run(None, arrays, options)
        except VerificationError:
            raise
        except Exception as error:
            raise VerificationError(
                f"onnxruntime cannot run node '{self._name}' on its own: {str(error)[:200]}"
            ) from None
        return dict(zip(self._outputs, values, strict=True))

    def _is_packed(self) -> bool:
        """Return whether the node is a convolution of images that is faster with a packed weight."""
        node, view = self._node, self._view
        if node.op_type != "Conv" or node.domain not in DEFAULT_DOMAINS:
            return False
        weight, shape = node.input[1], view.shape(node.input[1]) or ()
        is_window_of_images = len(shape) == 4 and shape[2:] != (1, 1)
        is_stored = view.is_weight(weight) and view.weight_type(weight) == TensorProto.FLOAT
        if not (is_stored and is_window_of_images):
            return False
        groups, size = attribute(node, "group", 1), view.weight_size(weight)
        return shape[:2] == (groups, 1) or (groups == 1 and _PACKED_NUMBERS <= size < _FED_BYTES // 4)

    def _fed_values(self, weight: Weight) -> Array | None:
        """Return a weight that is an input of the one-node model, None for others and for types that cannot be fed."""
        if weight.dtype.kind not in "biuf":
            return None
        is_large = weight.nbytes >= _FED_BYTES
        if not is_large and (self._node.op_type not in _FED_OPERATORS or self._node.domain not in DEFAULT_DOMAINS):
            return None
        if isinstance(weight, LazyTensor):
            return weight.mapped() if is_large else weight.load()
        return np.ascontiguousarray(weight)


def _drop_names(node: NodeProto) -> NodeProto:
    """Return a node without its name, which reads tensors i0, i1, ... and writes o0, o1, ..."""
    inputs = {n: f"i{i}" for i, n in enumerate(dict.fromkeys(filter(None, node.input)))} | {"": ""}
    alike = NodeProto(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
    alike.input.extend(inputs[n] for n in node.input)
    alike.output.extend(n and f"o{i}" for i, n in enumerate(node.output))
    return alike


def with_addend(view: GraphView, node: NodeProto) -> tuple[GraphView, str]:
    """Return a copy in which a node adds an input of the model to its first one, and the name of that input.

    The first input of the node is an output of the copy, the last one. It must have a known type, be written by a node,
    and be no output yet.
    """
    copy = view.copy()
    read, kind = node.input[0], view.elem_type(node.input[0])
    name = copy.fresh_name(f"{read}_addend")
    copy.substitute({node_key(node): helper.make_node("Add", [read, name], [node.output[0]], node.name)})
    copy.graph.input.append(helper.make_tensor_value_info(name, kind, None))
    copy.graph.output.append(helper.make_tensor_value_info(read, kind, None))
    return copy, name


def add_behind(view: GraphView, addends: Mapping[str, str]) -> None:
    """Add weights to tensors; the sums take the tensors' names."""
    made: dict[str, list[NodeProto]] = {}
    for node in view.nodes:
        fresh = {name: view.fresh_name(f"{name}_without_addend") for name in node.output if name in addends}
        sums = [helper.make_node("Add", [old, addends[name]], [name], f"{name}_addend") for name, old in fresh.items()]
        if fresh:
            made[node_key(node)] = [rewritten(node, outputs=[fresh.get(name, name) for name in node.output]), *sums]
    view.expand(made)
