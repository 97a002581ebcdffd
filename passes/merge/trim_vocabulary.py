"""Keep the words of some ids: rows of the tables that ids look up, and what computes scores of all words."""

from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto

from onnxfold.channels.layers import computation
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.nodes import attr_int, node_key, rewritten
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.embedding import readers_of_ids
from onnxfold.passes.base import Pass, PassResult

#: Operators that compute every word by itself, beside those whose computation rules declare.
_BY_WORD = frozenset({
    "Cast", "Clip", "DequantizeLinear", "Div", "Identity", "MatMulInteger", "MatMulNBits", "Mul", "Sub", "Tanh",
    "Transpose",
})  # fmt: skip


@dataclass(frozen=True, eq=False)
class TrimVocabulary(Pass):
    """Remove all other words from the tables, and from the scores that the model gives."""

    ids: str  # the input that holds ids
    kept: Array  # the ids that stay, ascending; they get the numbers 0, 1, ...
    words: int  # number of all

    def run(self, view: GraphView) -> PassResult:
        """Take the rows of every weight that has a row, or a column, per word."""
        places = _Places(view, self.words)
        for node in readers_of_ids(view, self.ids):
            places.add(node)
        scores = [name for name in view.output_names if (view.shape(name) or (None,))[-1] == self.words]
        for name in scores:
            places.follow(name)
        places.require_no_other_reader()
        for name, axis in places.axes.items():
            view.set_weight(name, self._taken(view.weight(name), axis))
        counting = [node for node in places.nodes if attr_int(node, "N", 0)]
        view.substitute({node_key(node): rewritten(node, attributes={"N": len(self.kept)}) for node in counting})
        view.resize({name: {len(view.shape(name) or ()) - 1: len(self.kept)} for name in scores})
        view.drop_inferable_infos()
        return PassResult(modified=bool(places.axes))

    def _taken(self, values: Array, axis: int) -> Array:
        """Return the entries of the words that stay; a row of blocks may be written flat."""
        if values.shape[axis] == self.words:
            return np.ascontiguousarray(np.take(values, self.kept, axis=axis))
        return values.reshape(self.words, -1)[self.kept].reshape(-1)


@dataclass(eq=False)
class _Places:
    """The weights that have an axis of words, and the nodes between these and the model's scores."""

    view: GraphView
    words: int
    axes: dict[str, int] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)

    def add(self, node: NodeProto) -> None:
        """Follow the operands of a node that have an axis of words."""
        if node in self.nodes:
            return
        self.nodes.append(node)
        for name in filter(None, node.input):
            axes = [i for i, length in enumerate(self.view.shape(name) or ()) if length == self.words]
            if not axes and attr_int(node, "N", 0) == self.words and self.view.is_weight(name):
                axes = [0]  # scales and zero points of blocks, written flat
            if axes:
                self.follow(name, axes)

    def follow(self, name: str, axes: list[int] | None = None) -> None:
        """Note a weight, or follow what computes a tensor with an axis of words."""
        producer = self.view.producer(name)
        if self.view.is_weight(name):
            axis, *more = axes or [0]
            if more or self.axes.setdefault(name, axis) != axis:
                raise UnsupportedModelError(
                    f"vocabulary: weight '{name}' has {self.words:,} entries along several axes"
                )
        elif producer is None or not (producer.op_type in _BY_WORD or computation(self.view, producer) is not None):
            what = f"'{name}'" if producer is None else f"{producer.op_type} '{producer.name or node_key(producer)}'"
            raise UnsupportedModelError(f"vocabulary: {what} is about all words, and no product by words: it must stay")
        else:
            self.add(producer)

    def require_no_other_reader(self) -> None:
        """Refuse words that something else reads."""
        between = {out for node in self.nodes for out in node.output if self.words in (self.view.shape(out) or ())}
        for name in (*self.axes, *between):
            for node in self.view.consumers(name):
                if node not in self.nodes:
                    reader = f"{node.op_type} '{node.name or node_key(node)}'"
                    raise UnsupportedModelError(f"vocabulary: {reader} reads '{name}' of all words, too: it must stay")
