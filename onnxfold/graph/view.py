"""An editable view of one model: nodes, names, shapes, and lazily read weights."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import count

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper
from onnxruntime import InferenceSession

from onnxfold.graph.nodes import canonical_domain, captured_names, node_key, read_names, refill
from onnxfold.graph.shapes.shape_inference import declared_type, drop_inferable, infer_types, values_matter
from onnxfold.graph.spill import SpillFile
from onnxfold.graph.tensors import Array, Shape, TensorType, Weight, is_float, loaded, type_of

#: Before this IR version every initializer had to be listed as a graph input as well.
_IR_WITHOUT_LISTED_WEIGHTS = 4
#: Types are kept for so many shapes of the inputs.
_KEPT_TYPES = 8


class GraphView:
    """The main graph of a model, with weights as an overlay over lazy tensors.

    Reading is free: messages are shown as they are. Editing goes through the methods of this class, each of which
    forgets what no longer holds of what was derived from the graph (who writes and reads a tensor, types, names in
    use); a test holds that no other package edits a graph in place.

    The view owns its model, which has no initializers. The ModelProto a user hands in is never edited:
    :func:`onnxfold.graph.files.load.load` copies everything but the weights.
    """

    def __init__(self, model: ModelProto, weights: Mapping[str, Weight], namespace: str = "") -> None:
        self.model = model
        #: What new names begin with: the place of a body in its model, since no name may hide one of the graphs around
        #: it; '' for the main graph.
        self.namespace = namespace
        #: What was changed on loading, in words.
        self.notes: list[str] = []
        self._weights = dict(weights)
        self._lent: dict[str, GraphView] = {}
        #: Where large weights wait that are edited from now on, in this view and in copies of it.
        self.scratch: SpillFile | None = None
        #: Sessions that run nodes like those of this graph, which copies share; the last one used is the last.
        self.node_sessions: OrderedDict[object, InferenceSession] = OrderedDict()
        self.spill = SpillFile()  # where their results wait
        #: Dimensions that are assumed for graph inputs, and types that were found by other means than shape inference.
        #: They are not written into the model.
        self.input_shapes: Mapping[str, Shape] = {}
        self.learned_types: Mapping[str, TensorType] = {}
        #: Of inputs, largest and mean of pixels that nothing scales, which the first layer told before it was changed.
        self.pixels: Mapping[str, tuple[float, float] | None] = {}
        #: Keys of nodes whose input the file quantises by its range: what each number becomes hangs on all of them.
        self.rescaled: frozenset[str] = frozenset()
        self._types: dict[frozenset[tuple[str, Shape]], dict[str, TensorType]] = {}
        self._producers: dict[str, NodeProto] | None = None
        self._consumers: dict[str, list[NodeProto]] | None = None
        self._names: set[str] | None = None

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
        return [i.name for i in self.graph.input if i.name not in self._weights]

    @property
    def declared_shapes(self) -> dict[str, Shape]:
        """Shapes of the inputs as the model states them, whatever is assumed; () where it states none."""
        return {info.name: declared_type(info)[1] for info in self.graph.input if info.name not in self._weights}

    @property
    def output_names(self) -> list[str]:
        """Graph outputs."""
        return [o.name for o in self.graph.output]

    def opset(self, domain: str = "") -> int:
        """Return the imported version of a domain, 0 if it is not imported."""
        domain = canonical_domain(domain)
        return max((o.version for o in self.model.opset_import if canonical_domain(o.domain) == domain), default=0)

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
                for name in read_names(node):
                    self._consumers.setdefault(name, []).append(node)
        return self._consumers.get(tensor, [])

    def replace_nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Put `nodes`, in topological order, in place of all nodes."""
        refill(self.graph.node, (NodeProto.FromString(n.SerializeToString()) for n in nodes))
        self._forget()

    def substitute(self, replaced: Mapping[str, NodeProto], removed: Collection[str] = ()) -> bool:
        """Put nodes in place of others, by their keys, and remove some; return whether anything changed."""
        if removed:
            nodes = [(node_key(node), node) for node in self.graph.node]
            self.replace_nodes(replaced.get(key, node) for key, node in nodes if key not in removed)
        elif replaced:
            for node in self.graph.node:
                if (successor := replaced.get(node_key(node))) is not None:
                    node.CopyFrom(successor)
            self._forget()
        return bool(replaced or removed)

    def expand(self, made: Mapping[str, Sequence[NodeProto]]) -> bool:
        """Put any number of nodes in place of each of some, by their keys; return whether anything changed."""
        if made:
            self.replace_nodes(new for node in self.nodes for new in made.get(node_key(node), [node]))
        return bool(made)

    def rename_inputs(self, renamed: Mapping[str, str]) -> bool:
        """Let nodes read other tensors, outside of their bodies; return whether any reads another one."""
        places = [(node, i) for node in self.graph.node for i, name in enumerate(node.input) if name in renamed]
        for node, i in places:
            node.input[i] = renamed[node.input[i]]
        if places:
            self._types, self._consumers = {}, None
        return bool(places)

    def fill_input(self, node: NodeProto, index: int, weight: str) -> None:
        """Let a node read a weight at an input that is left out so far.

        This changes no type; all that is derived from the nodes is kept up to date, so it is cheap at any time.
        """
        node.input.extend([""] * (index + 1 - len(node.input)))
        node.input[index] = weight
        if self._consumers is not None:
            self._consumers.setdefault(weight, []).append(node)

    def put_body(self, node: str, attribute: str, body: GraphProto, lent: Iterable[str]) -> None:
        """Write a body, which keeps what it was lent, into an attribute of the node that is called by its key."""
        for name in lent:
            self._lent.pop(name, None)
        holder = self.producer(node)
        assert holder is not None
        next(attr for attr in holder.attribute if attr.name == attribute).g.CopyFrom(body)
        self._forget()

    def replace_model(self, model: ModelProto) -> None:
        """Take over another form of the model, without initializers."""
        self.model.CopyFrom(model)
        self._forget()

    def unlist_weights(self) -> bool:
        """Take weights off the list of graph inputs; return whether there were any.

        Before IR version 4 every weight had to be listed; a caller of the model could override it.
        """
        kept = [info for info in self.graph.input if info.name not in self._weights]
        if len(kept) == len(self.graph.input):
            return False
        refill(self.graph.input, kept)
        self.model.ir_version = max(self.model.ir_version, _IR_WITHOUT_LISTED_WEIGHTS)
        self._forget()
        return True

    def drop_lost_infos(self) -> None:
        """Drop declared types of tensors that nothing writes any more."""
        names = {o for node in self.graph.node for o in node.output} | {info.name for info in self.graph.input}
        refill(self.graph.value_info, (info for info in self.graph.value_info if info.name in names))

    def drop_inferable_infos(self) -> None:
        """Drop declared types that shape inference finds anew; they may be stale."""
        drop_inferable(self.model)
        self.learned_types = {}
        self._types = {}

    def learn(self, types: Mapping[str, TensorType]) -> bool:
        """Take over types of tensors that shape inference does not find; return whether they are new."""
        new = any(self.learned_types.get(name) != kind for name, kind in types.items())
        self.learned_types = {**self.learned_types, **types}
        if new:
            self._types = {}
        return new

    def assume(self, input_shapes: Mapping[str, Shape]) -> None:
        """Assume dimensions of graph inputs, in place of what was assumed before; None leaves one as it is."""
        self.input_shapes = dict(input_shapes)
        self._types = {}

    @property
    def run_shapes(self) -> dict[str, tuple[int, ...]]:
        """The assumed dimensions, and one where these leave one as it is."""
        return {name: tuple(d or 1 for d in self.shape(name) or ()) for name in self.input_shapes}

    @contextmanager
    def without_assumptions(self) -> Iterator[None]:
        """Forget for a while what is assumed of the inputs: it is a user's, for the analysis, and not the model's."""
        assumed = self.input_shapes
        if assumed:
            self.assume({})
        try:
            yield
        finally:
            if assumed:
                self.assume(assumed)

    def fix_input_shapes(self, shapes: Mapping[str, Sequence[int | None]]) -> None:
        """Write dimensions of graph inputs into the model; None leaves one as it is. Nothing is assumed any more."""
        for info in self.graph.input:
            dims = info.type.tensor_type.shape.dim
            for axis, size in enumerate(shapes.get(info.name, ())):
                dim = dims[axis] if axis < len(dims) else dims.add()
                if size is not None:
                    dim.dim_value = size
        self.assume({})

    def declare_input(self, name: str, elem_type: int, shape: Sequence[int | None]) -> None:
        """Give an input another type and other dimensions; None leaves one free."""
        for info in self.graph.input:
            if info.name == name:
                info.CopyFrom(helper.make_tensor_value_info(name, elem_type, shape))
        self._types = {}

    def give_out(self, tensors: Iterable[str]) -> None:
        """Let the model give out more tensors, too."""
        self.graph.output.extend(helper.make_tensor_value_info(name, self.elem_type(name), None) for name in tensors)

    def resize(self, sizes: Mapping[str, Mapping[int, int]]) -> None:
        """Give axes of inputs and outputs, by name and number, other lengths than those that are stated or assumed."""
        for info in (*self.graph.input, *self.graph.output):
            for axis, size in sizes.get(info.name, {}).items():
                if info.type.tensor_type.shape.dim[axis].HasField("dim_value"):
                    info.type.tensor_type.shape.dim[axis].dim_value = size
        self.assume(
            {
                name: tuple(sizes.get(name, {}).get(axis, size) for axis, size in enumerate(shape))
                for name, shape in self.input_shapes.items()
            }
        )

    @property
    def weights(self) -> Mapping[str, Weight]:
        """Initializers by name."""
        return self._weights

    def is_weight(self, tensor: str) -> bool:
        """Whether `tensor` is an initializer."""
        return tensor in self._weights

    def find_weight(self, name: str) -> Weight | None:
        """Return an initializer, unread: of this graph, or of an open body, at any depth, that alone reads it."""
        body = self._lent.get(name)
        return self._weights.get(name) if body is None else body.find_weight(name)

    def weight(self, name: str) -> Array:
        """Return an initializer's values."""
        if name in self._lent:
            return self._lent[name].weight(name)
        return loaded(self._weights[name])

    def set_weight(self, name: str, values: Array) -> None:
        """Replace an initializer, keeping its element type, or add one."""
        old = self._weights.get(name)
        if old is not None:
            values = values.astype(old.dtype, copy=False)
        self._weights[name] = self.held(np.asarray(values))
        if old is None or tuple(old.shape) != values.shape or values_matter(self.weight_type(name), values.size):
            self._types = {}

    def add_weight(self, stem: str, values: Array) -> str:
        """Add an initializer, which no node reads yet, under a fresh name that begins with `stem`; return the name."""
        name = self.fresh_name(stem)
        self._weights[name] = self.held(values)
        return name

    def held(self, values: Array) -> Weight:
        """Return values as this view keeps edited weights: large ones wait in the file, where there is one."""
        return values if self.scratch is None else self.scratch.keep_weight(values)

    def put_weights(self, values: Mapping[str, Weight]) -> None:
        """Add or replace initializers, as they are given."""
        self._weights.update(values)
        if values:
            self._types = {}

    def rename_weights(self, new_name: Callable[[str], str]) -> None:
        """Give initializers other names, after those that read them were given these."""
        self._weights = {new_name(name): value for name, value in self._weights.items()}
        self._forget()

    def remove_weights(self, names: Iterable[str]) -> None:
        """Remove initializers that no node reads any more; so no type changes."""
        for name in names:
            del self._weights[name]

    def lend_weights(self, names: Iterable[str], body: "GraphView") -> None:
        """Leave initializers to an open body that alone reads them, or to its copy; what runs the node finds them."""
        for name in names:
            if name in self._weights:
                body._weights[name] = self._weights.pop(name)
            self._lent[name] = body

    def take_back(self, weights: Mapping[str, Weight]) -> None:
        """Hold initializers again that were lent."""
        for name in weights:
            self._lent.pop(name)
        self._weights.update(weights)

    def weight_size(self, name: str) -> int:
        """Return the number of elements of an initializer without reading it."""
        return self._weights[name].size

    def float_weight_names(self) -> list[str]:
        """Names of the float initializers."""
        return [n for n in self._weights if is_float(self.weight_type(n))]

    def weight_type(self, name: str) -> int:
        """Return the ONNX element type of an initializer without reading it."""
        return type_of(self._weights[name])

    def fresh_name(self, stem: str) -> str:
        """Return a tensor name that is not in use."""
        return next(self.fresh_names(stem))

    def fresh_names(self, stem: str) -> Iterator[str]:
        """Yield tensor names that are not in use: the stem, then the stem with numbers."""
        start = stem if stem.startswith(self.namespace) else self.namespace + stem
        for name in (start if i == 0 else f"{start}_{i}" for i in count()):
            if self._names is None:
                names = ((*node.output, *captured_names(node)) for node in self.graph.node)
                self._names = {info.name for info in self.graph.input}.union(*names)
            if name not in self._weights and name not in self._names:
                yield name

    def shape(self, tensor: str) -> Shape | None:
        """Return the dimensions (None = not known as a number), None if the rank is unknown."""
        if tensor in self._weights:
            return tuple(self._weights[tensor].shape)
        kind = self.types_for({}).get(tensor)
        return kind[1] if kind else None

    def symbols(self, tensor: str) -> tuple[str, ...]:
        """Return the symbol of each dimension of an activation, '' where it has none; equal symbols are equal sizes."""
        return self.types_for({}).get(tensor, (0, (), ()))[2]

    def elem_type(self, tensor: str) -> int:
        """Return the ONNX element type, 0 if unknown."""
        if tensor in self._weights:
            return self.weight_type(tensor)
        return self.types_for({}).get(tensor, (0, (), ()))[0]

    def types_for(self, input_shapes: Mapping[str, Sequence[int | None]]) -> Mapping[str, TensorType]:
        """Return the types of all tensors but weights, where inputs have these dimensions in place of assumed ones."""
        key = frozenset((name, tuple(shape)) for name, shape in input_shapes.items())
        if key not in self._types:
            if len(self._types) == _KEPT_TYPES:
                self._types.popitem()  # the first ones are asked for again and again
            shapes = {**self.input_shapes, **input_shapes}
            self._types[key] = infer_types(self.model, self._weights, shapes, self.learned_types)
        return self._types[key]

    def _forget(self) -> None:
        """Forget everything derived from the nodes."""
        self._types = {}
        self._producers = self._consumers = self._names = None

    def end_runs(self) -> None:
        """Forget the sessions of nodes and what waits on the disk, in this view and in its copies."""
        self.node_sessions.clear()
        self.spill.close()

    def copy(self) -> "GraphView":
        """Return an independent view; weights are shared until edited."""
        view = GraphView(deepcopy(self.model), self._weights, self.namespace)
        view.input_shapes = self.input_shapes
        view.learned_types, view.pixels = self.learned_types, self.pixels
        view._lent = dict(self._lent)
        view.scratch, view.rescaled = self.scratch, self.rescaled
        view.node_sessions, view.spill = self.node_sessions, self.spill
        view._types = dict(self._types)
        return view
