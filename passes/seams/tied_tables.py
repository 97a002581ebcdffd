"""Seams of tables that words are looked up in and scored by: identity matrices around them, parts for rare words."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from onnxfold.channels import find_groups
from onnxfold.channels.constraints import is_identity
from onnxfold.graph.nodes import attr_int, attr_ints, captured_names, node_key, rewritten
from onnxfold.graph.patterns import multiplies_weight
from onnxfold.graph.tensors import is_float
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import PassResult
from onnxfold.passes.seams.tables import RareRows, SeamPass, add_identity, identity_product


@dataclass(frozen=True)
class TiedTable:
    """A table, the results of its lookups, and the tensors that are multiplied by it, all as wide as it is."""

    table: str
    width: int
    rows: tuple[str, ...]
    scored: tuple[str, ...]  # what is multiplied by it


def find_ties(view: GraphView) -> list[TiedTable]:
    """Return the tables that a Gather looks rows up in, and a MatMul or Gemm multiplies by, and nothing else reads.

    Either reads the table directly or through a Transpose. No lookup, and nothing that is multiplied, is an output of
    the graph or read by a body.
    """
    held = {name for node in view.nodes for name in captured_names(node)} | set(view.output_names)
    ties = []
    for table in dict.fromkeys(name for node in view.nodes for name in node.input):
        if not view.is_weight(table) or table in held or not is_float(view.weight_type(table)):
            continue
        rows: list[str] = []
        scored: list[str] = []
        shape = view.weights[table].shape
        readers = readers_of(view, table) if len(shape) == 2 else ()
        whole = all(_meets(view, node, name, rows, scored) for name, node in readers)
        widths = {view.shape(name)[-1:] for name in (*rows, *scored) if view.shape(name)}  # type: ignore[index]
        whole = whole and all(view.producer(name) for name in scored)
        if not whole or not rows or not scored or len(widths) != 1 or not held.isdisjoint((*rows, *scored)):
            continue
        (width,) = widths.pop()
        if width in shape:
            ties.append(TiedTable(table, int(width or 0), tuple(dict.fromkeys(rows)), tuple(dict.fromkeys(scored))))
    return ties


def readers_of(view: GraphView, table: str) -> Iterable[tuple[str, NodeProto]]:
    """Yield what reads a table, directly or turned, with the name that it reads."""
    for node in view.consumers(table):
        if node.op_type == "Transpose" and attr_ints(node, "perm") in ([], [1, 0]):
            yield from ((node.output[0], reader) for reader in view.consumers(node.output[0]))
        else:
            yield table, node


def _meets(view: GraphView, node: NodeProto, name: str, rows: list[str], scored: list[str]) -> bool:
    """Note what a node looks up in a table, or multiplies by it; return whether it does either."""
    if node.op_type == "Gather" and node.input[0] == name and attr_int(node, "axis", 0) in (0, -2):
        rows.append(node.output[0])
        return True
    if node.op_type in ("MatMul", "Gemm") and node.input[1] == name and node.input[0] != name:
        scored.append(node.input[0])
        return not attr_int(node, "transA", 0)
    return False


#: The opset from which on integers are compared, and axes are inputs.
_OPSET = 13


class SplitTables(RareRows):
    """Let rare words be written in fewer numbers than others.

    Case 1: a table E that a Gather looks rows up in, and a MatMul scores by. Its rare
    rows A^T and all others E' are two tables then:

        E[i]    =  rare(i) ? A[:, i - first]^T I : E'[i'],        x E^T  =  [x E'^T, (x I) A],

    the scores in the order of the ids. The columns of A^T may be rotated, and fewer; while none of them goes, one
    table will do.
    """

    def run(self, view: GraphView) -> PassResult:
        """Split every table that has these ids."""
        weights = sum(map(view.weight_size, view.float_weight_names()))
        parts: dict[str, str] = {}
        for tie in find_ties(view) if view.opset() >= _OPSET else ():
            rows = view.weight_size(tie.table) // tie.width
            rare = view.fresh_name(f"{tie.table}_from_{self.first}")
            kinds = {node.op_type for _, node in readers_of(view, tie.table)}
            if self.fits(rows, tie.width, weights) and self.writes(view, rare) and kinds <= {"Gather", "MatMul"}:
                parts[self._split(view, tie, rows)] = tie.table
        return PassResult(bool(parts), parts)

    def _split(self, view: GraphView, tie: TiedTable, rows: int) -> str:
        """Split a table; return the name of the new one."""
        readers = [(name, node.output[0], node.op_type) for name, node in readers_of(view, tie.table)]
        table = view.weight(tie.table)
        # What a lookup reads has its rows first.
        is_turned = any(name != tie.table for name, _, kind in readers if kind == "Gather")
        across = 1 if is_turned else 0
        rare = np.take(table, np.arange(self.first, self.stop), axis=across)
        codes = view.add_weight(f"{tie.table}_from_{self.first}", np.ascontiguousarray(rare if is_turned else rare.T))
        view.set_weight(tie.table, np.delete(table, np.s_[self.first : self.stop], axis=across))
        kinds = {output: kind for _, output, kind in readers}
        write = {"Gather": self._lookup, "MatMul": self._scores}
        read = [(node, kinds[node_key(node)]) for node in view.nodes if node_key(node) in kinds]
        view.expand({node_key(node): write[kind](view, node, tie, codes, rows) for node, kind in read})
        view.drop_inferable_infos()
        return codes

    def _lookup(self, view: GraphView, node: NodeProto, tie: TiedTable, codes: str, rows: int) -> list[NodeProto]:
        """Return the nodes that look an id up in one table or the other."""
        data, ids = node.input
        stem, kind = f"{node.output[0]}_rare", np.dtype(helper.tensor_dtype_to_np_dtype(view.elem_type(ids)))
        rank = len(view.shape(ids) or ())
        made: list[NodeProto] = []
        names = view.fresh_names(stem)

        def add(operator: str, inputs: list[str], **attributes: Any) -> str:
            name = next(names)
            made.append(helper.make_node(operator, inputs, [name], name, **attributes))
            return name

        def number(value: int) -> str:
            return view.add_weight(f"{stem}_at", np.array(value, kind))

        count, is_last = self.stop - self.first, self.stop == rows
        past = add("Sub", [ids, number(self.first)])
        inside = add("Max", [past, number(0)])
        rare = add("Min", [inside, number(count - 1)])
        if is_last:  # rare ids read the last of the other rows, and others where they stand
            other = add("Min", [ids, number(self.first - 1)])
        else:
            other = add("Sub", [ids, add("Min", [inside, number(count)])])
        rare_rows = add("Gather", [codes, rare], axis=1)
        made[-1].name = f"{node.name or node.output[0]}_from_{self.first}"
        rare_rows = add("Transpose", [rare_rows], perm=[*range(1, rank + 1), 0])
        rare_rows = add("MatMul", [rare_rows, add_identity(view, codes, tie.width)])
        usual = next(names)
        made.append(rewritten(node, inputs=[data, other], outputs=[usual]))
        is_rare = add("Unsqueeze", [add("Equal", [past, rare]), view.add_weight(f"{stem}_axis", np.array([-1]))])
        made.append(helper.make_node("Where", [is_rare, rare_rows, usual], [node.output[0]], f"{stem}_words"))
        return made

    def _scores(self, view: GraphView, node: NodeProto, tie: TiedTable, codes: str, rows: int) -> list[NodeProto]:
        """Return the nodes that score by one table and the other."""
        stem = node.output[0]
        turned, rare, usual = (view.fresh_name(f"{stem}_{part}") for part in ("turned", "rare", "usual"))
        basis = add_identity(view, codes, tie.width)
        # Scores of all words take most memory: what is small comes first.
        made = [
            helper.make_node("MatMul", [node.input[0], basis], [turned], turned),
            helper.make_node("MatMul", [turned, codes], [rare], rare),
            rewritten(node, outputs=[usual]),
        ]
        if self.stop == rows:
            parts = [usual, rare]
        else:
            front, behind = (view.fresh_name(f"{stem}_{part}") for part in ("front", "behind"))
            sizes = view.add_weight(f"{stem}_parts", np.array([self.first, rows - self.stop]))
            made.append(helper.make_node("Split", [usual, sizes], [front, behind], front, axis=-1))
            parts = [front, rare, behind]
        return [*made, helper.make_node("Concat", parts, [stem], f"{stem}_words", axis=-1)]


class FactorTies(SeamPass):
    """Let a residual stream be narrower than the table that it begins and ends with.

    Case 1: a weight of two axes, which a Gather looks rows up in, and a MatMul or Gemm multiplies by, each directly or
    through a Transpose, and that nothing else reads. E[ids] becomes E[ids] I, and x E^T becomes (x I) E^T. The products
    are there only where a stream may be rotated then; while none of its channels goes, there is no need of them.
    """

    def run(self, view: GraphView) -> PassResult:
        """Insert a product behind every lookup, and one in front of every tensor that is scored."""
        ties = [tie for tie in find_ties(view) if not _has_product(view, tie) and self.writes(view, tie.table)]
        if not ties or (self.only is None and not _are_rotated(view.copy(), ties)):
            return PassResult(modified=False)
        _insert(view, ties)
        return PassResult(modified=True)


def _are_rotated(trial: GraphView, ties: list[TiedTable]) -> bool:
    """Whether a stream may be rotated behind some products, which are inserted."""
    written, groups = _insert(trial, ties), find_groups(trial, streams=True).groups
    return any(member.axis.tensor in written for group in groups if group.norms for member in group.members)


def _has_product(view: GraphView, tie: TiedTable) -> bool:
    readers = (reader for name in tie.rows for reader in view.consumers(name))
    return any(multiplies_weight(view, reader) and is_identity(view, reader.input[1]) for reader in readers)


def _insert(view: GraphView, ties: list[TiedTable]) -> set[str]:
    """Insert the products; return the names of their weights."""
    products: dict[str, NodeProto] = {}
    renamed: dict[str, str] = {}
    scored: dict[tuple[str, str], str] = {}
    for tie in ties:
        for name in (*tie.rows, *tie.scored):
            products[name] = identity_product(view, name, tie.table, tie.width)
            (result,) = products[name].output
            if name in tie.rows:
                renamed[name] = result
            else:
                scored |= {(name, table): result for table, _ in readers_of(view, tie.table)}
    nodes: list[NodeProto] = []
    for node in view.nodes:
        inputs = [renamed.get(name, name) for name in node.input]
        if len(node.input) > 1 and (node.input[0], node.input[1]) in scored:
            inputs[0] = scored[node.input[0], node.input[1]]
        nodes.append(rewritten(node, inputs=inputs))
        nodes += [products[name] for name in node.output if name in products]
    view.replace_nodes(nodes)
    return {product.input[1] for product in products.values()}
