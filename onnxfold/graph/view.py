"""An editable view of one model: nodes, names, shapes, and lazily read weights."""

from collections.abc import Iterable, Iterator
from itertools import count

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.nodes import DEFAULT_DOMAINS, captured_names
from onnxfold.graph.shape_inference import Shape, TensorType, infer_types, values_matter
from onnxfold.graph.tensors import Array, LazyTensor, elem_type_of, is_float


class GraphView:
    """The main graph of a model, with weights as an overlay over lazy tensors.

    Parameters
    ----------
    model : ModelProto
        The model without initializers; owned by the view and edited in place.
    weights : dict of str to LazyTensor or ndarray
        Initializers by name. An ndarray is an edited weight.

    Notes
    -----
    The ModelProto a user hands in is never edited: :func:`onnxfold.graph.load.load` copies everything
    but the weights.
    """

    def __init__(self, model: ModelProto, weights: dict[str, LazyTensor | Array]) -> None:
        self.model = model
        self.weights = weights
        self.input_shapes: dict[str, tuple[int, ...]] = {}
        #: What was changed on loading, in words.
        self.notes: list[str] = []
        #: What new names begin with.
        self.name_prefix = ""
        #: Initializers that are copies of another one, made so that they can be edited apart.
        self.copies: dict[str, str] = {}
        #: Initializers that an opened body holds meanwhile, by name.
        self.lent: dict[str, GraphView] = {}
        self._types: dict[str, TensorType] | None = None
        self._producers: dict[str, NodeProto] | None = None
        self._consumers: dict[str, list[NodeProto]] | None = None
        self._names: set[str] | None = None

    # -- nodes ---------------------------------------------------------------------------------

    @property
    def graph(self) -> GraphProto:
        """The main graph."""
        return self.model.graph

    @property
    def nodes(self) -> list[NodeProto]:
        """Nodes of the main graph in file order (topological in a valid model)."""
        return list(self.model.graph.node)

    @property
    def input_names(self) -> list[str]:
        """Graph inputs that are not weights."""
        return [i.name for i in self.graph.input if i.name not in self.weights]

    @property
    def output_names(self) -> list[str]:
        """Graph outputs."""
        return [o.name for o in self.graph.output]

    def opset(self, domain: str = "") -> int:
        """Return the imported version of a domain, 0 if it is not imported."""
        aliases = DEFAULT_DOMAINS if domain in DEFAULT_DOMAINS else (domain,)
        return max((o.version for o in self.model.opset_import if o.domain in aliases), default=0)

    def producer(self, tensor: str) -> NodeProto | None:
        """Return the node that writes `tensor`, None for inputs and weights."""
        if self._producers is None:
            self._producers = {o: n for n in self.graph.node for o in n.output if o}
        return self._producers.get(tensor)

    def consumers(self, tensor: str) -> list[NodeProto]:
        """Return the nodes that read `tensor`, also from inside their subgraphs; once per node."""
        if self._consumers is None:
            self._consumers = {}
            for node in self.graph.node:
                for name in dict.fromkeys([*node.input, *captured_names(node)]):
                    if name:
                        self._consumers.setdefault(name, []).append(node)
        return self._consumers.get(tensor, [])

    def replace_nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Put `nodes`, in topological order, in place of all nodes."""
        fresh = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del self.graph.node[:]
        self.graph.node.extend(fresh)
        self.touch()

    def touch(self) -> None:
        """Forget everything derived from the nodes; call after editing them."""
        self._types = self._producers = self._consumers = self._names = None

    def touch_bodies(self) -> None:
        """Forget what bodies inside nodes tell; call after editing only these."""
        self._types = self._consumers = self._names = None

    def append_input(self, node: NodeProto, weight: str) -> None:
        """Let a node read one more weight, which changes no type; nothing else derived from the nodes is forgotten."""
        node.input.append(weight)
        if self._consumers is not None:
            self._consumers.setdefault(weight, []).append(node)

    # -- weights -------------------------------------------------------------------------------

    def is_weight(self, tensor: str) -> bool:
        """Whether `tensor` is an initializer."""
        return tensor in self.weights

    def weight(self, name: str) -> Array:
        """Return an initializer's values."""
        if name in self.lent:
            return self.lent[name].weight(name)
        value = self.weights[name]
        return value.load() if isinstance(value, LazyTensor) else value

    def set_weight(self, name: str, values: Array) -> None:
        """Replace an initializer, keeping its element type, or add one."""
        old = self.weights.get(name)
        if old is not None:
            dtype = helper.tensor_dtype_to_np_dtype(self.weight_type(name))
            values = values.astype(dtype, copy=False)
        self.weights[name] = np.asarray(values)
        if old is None or tuple(old.shape) != values.shape or values_matter(self.weight_type(name), values.size):
            self._types = None

    def add_weight(self, stem: str, values: Array) -> str:
        """Add an initializer, which no node reads yet, under a fresh name that begins with `stem`; return the name."""
        name = self.fresh_name(stem)
        self.weights[name] = values
        return name

    def weight_size(self, name: str) -> int:
        """Return the number of elements of an initializer without reading it."""
        return int(np.prod(self.weights[name].shape, dtype=np.int64))

    def float_weight_names(self) -> list[str]:
        """Names of the float initializers."""
        return [n for n in self.weights if is_float(self.weight_type(n))]

    def weight_type(self, name: str) -> int:
        """Return the ONNX element type of an initializer without reading it."""
        value = self.weights[name]
        return value.elem_type if isinstance(value, LazyTensor) else elem_type_of(value)

    def fresh_name(self, stem: str) -> str:
        """Return a tensor name that is not in use."""
        return next(self.fresh_names(stem))

    def fresh_names(self, stem: str) -> Iterator[str]:
        """Yield tensor names that are not in use: the stem, then the stem with numbers."""
        start = stem if stem.startswith(self.name_prefix) else self.name_prefix + stem
        for name in (start if i == 0 else f"{start}_{i}" for i in count()):
            if self._names is None:
                self._names = self._used_names()
            if name not in self.weights and name not in self._names:
                yield name

    def _used_names(self) -> set[str]:
        """Return the names of everything but weights."""
        names = {i.name for i in self.graph.input}
        for node in self.graph.node:
            names.update(node.output)
            names.update(captured_names(node))
        return names

    # -- types ---------------------------------------------------------------------------------

    def shape(self, tensor: str) -> Shape | None:
        """Return the dimensions (None = not known as a number), None if the rank is unknown."""
        if tensor in self.weights:
            return tuple(self.weights[tensor].shape)
        found = self._inferred().get(tensor)
        return found[1] if found else None

    def symbols(self, tensor: str) -> tuple[str, ...]:
        """Return the symbol of each dimension of an activation, '' where it has none; equal symbols are equal sizes."""
        found = self._inferred().get(tensor)
        return found[2] if found else ()

    def elem_type(self, tensor: str) -> int:
        """Return the ONNX element type, 0 if unknown."""
        if tensor in self.weights:
            return self.weight_type(tensor)
        return self._inferred().get(tensor, (0, (), ()))[0]

    def _inferred(self) -> dict[str, TensorType]:
        if self._types is None:
            self._types = infer_types(self.model, self.weights, self.input_shapes)
        return self._types

    def copy(self) -> "GraphView":
        """Return an independent view; weights are shared until edited."""
        model = ModelProto()
        model.CopyFrom(self.model)
        view = GraphView(model, dict(self.weights))
        view.input_shapes = dict(self.input_shapes)
        view.copies = dict(self.copies)
        view.lent = dict(self.lent)
        view.name_prefix = self.name_prefix
        view._types = self._types
        return view


def require_main_graph(model: ModelProto) -> None:
    """Refuse models that hold no computation.

    Raises
    ------
    UnsupportedModelError
        If there is no node or no output.
    """
    if not model.graph.node or not model.graph.output:
        raise UnsupportedModelError("the model has no nodes or no outputs: there is nothing to fold")
