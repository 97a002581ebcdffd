"""Look rare words up in tables of their own."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import captured_names, rewritten
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import has_known_type
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.seams.factor_tables import LEAST_ROWS, LEAST_SHARE_OF_PART, is_own_table

#: The opset from which on integers are compared.
_OPSET = 12


@dataclass(frozen=True)
class SplitLookups(Pass):
    """Let rare words be written in fewer numbers than others.

    Case 1: a table E that only a Gather reads (:mod:`passes.normalize.factor_tables`). Its rare rows A and all others
    E' are two tables then, and every id finds zeros in one of them:

        E[i] = E'[i, or a row of zeros where i is rare] + A[i - first + 1, or a row of zeros where it is not].

    Zeros count for nothing where it is measured what is read of a table, so each of them may be rotated, and be
    narrower, by itself. While neither is, there is no need of two.
    """

    first: int
    stop: int
    only: frozenset[str] | None = None  # the names of the matrices that are written behind tables; all if None

    def run(self, view: GraphView) -> PassResult:
        """Split every table that has these ids."""
        if view.opset() < _OPSET:
            return PassResult(modified=False)
        captured = {name for node in view.nodes for name in captured_names(node)}
        weights = sum(map(view.weight_size, view.float_weight_names()))
        nodes: list[NodeProto] = []
        parts: dict[str, str] = {}
        for node in view.nodes:
            is_lookup = is_own_table(view, node, captured) and has_known_type(view, node.input[1])
            if is_lookup and self._fits(view, node.input[0], weights):
                made, rare = self._split(view, node)
                nodes += made
                parts[rare] = node.input[0]
            else:
                nodes.append(node)
        if parts:
            view.replace_nodes(nodes)
            view.drop_inferable_infos()
        return PassResult(bool(parts), parts)

    def _fits(self, view: GraphView, table: str, weights: int) -> bool:
        """Whether both parts of a table are large enough to be narrower, and one of them is to be."""
        parts = table, view.fresh_name(f"{table}_from_{self.first}")
        if self.only is not None and self.only.isdisjoint(view.fresh_name(f"{part}_basis") for part in parts):
            return False
        rows, width = view.weights[table].shape
        count = self.stop - self.first
        fits = 0 < self.first < self.stop <= rows and min(count, rows - count) >= LEAST_ROWS * width
        return fits and count * width >= LEAST_SHARE_OF_PART * weights

    def _split(self, view: GraphView, node: NodeProto) -> tuple[list[NodeProto], str]:
        """Return the nodes that look an id up in both tables, and the name of the new one."""
        table, ids = node.input
        values = view.weight(table)
        zeros = np.zeros_like(values[:1])
        parts = np.split(values, [self.first, self.stop])
        rare = view.add_weight(f"{table}_from_{self.first}", np.concatenate([zeros, parts[1], zeros]))
        view.set_weight(table, np.concatenate([parts[0], zeros, parts[2]]))
        names = view.fresh_names(f"{table}_from_{self.first}_ids")
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(view.elem_type(ids)))
        made: list[NodeProto] = []

        def add(operator: str, a: str, b: str | int) -> str:
            name = next(names)
            other = view.add_weight(f"{name}_at", np.array(b, kind)) if isinstance(b, int) else b
            made.append(helper.make_node(operator, [a, other], [name], name))
            return name

        count = self.stop - self.first
        within = add("Min", add("Max", add("Sub", ids, self.first), 0), count - 1)
        other = add("Sub", ids, within)
        place = add("Min", add("Max", add("Sub", ids, self.first - 1), 0), count + 1)
        usual, rare_rows = next(names), next(names)
        name = f"{node.name or node.output[0]}_from_{self.first}"
        made += [
            rewritten(node, inputs=[table, other], outputs=[usual]),
            helper.make_node("Gather", [rare, place], [rare_rows], name),
            helper.make_node("Add", [usual, rare_rows], [node.output[0]], f"{name}_words"),
        ]
        return made, rare
