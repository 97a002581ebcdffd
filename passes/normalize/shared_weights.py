"""Weights that several nodes read: copied before a fold, shared again behind it, stored once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import node_key, rewritten
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.normalize.unneeded import RemoveUnused

#: Smaller weights are not worth a node, nor that layers share their channels.
_LEAST_BYTES = 1024
#: Numbers of a diagonal, the same in a matrix and in its transpose, that tell most weights apart.
_SEEN = 64

#: A weight, and whether it is read turned.
_Source = tuple[str, bool]


@dataclass(frozen=True)
class UnshareInitializers(Pass):
    """Copy vectors (one axis longer than 1) that several inputs read.

    Optimisers deduplicate equal biases and BatchNormalization parameters; sharing would couple the channels
    of layers that have nothing to do with each other. Copies that stay equal are shared again by ShareInitializers.
    Matrices and filters stay shared: there the sharing is the model's own (siamese branches, tied weights), and
    its channels really are the same.
    """

    def run(self, view: GraphView) -> PassResult:
        """Copy for every reader but the first."""
        seen: set[str] = set()
        names: dict[str, Iterator[str]] = {}
        copies: dict[str, str] = {}
        rewired: dict[str, NodeProto] = {}
        for node in view.nodes:
            inputs = list(node.input)
            for i, name in enumerate(inputs):
                if not view.is_weight(name) or sum(d > 1 for d in view.weights[name].shape) != 1:
                    continue
                if name in seen:
                    copy = next(names.setdefault(name, view.fresh_names(f"{name}_copy")))
                    view.put_weights({copy: view.weights[name]})
                    copies[copy] = name
                    inputs[i] = copy
                seen.add(name)
            if inputs != node.input:
                rewired[node_key(node)] = rewritten(node, inputs=inputs)
        return PassResult(view.substitute(rewired), copies)


@dataclass(frozen=True)
class ShareInitializers(Pass):
    """Merge the copies that UnshareInitializers made with their original where they are still equal.

    Notes
    -----
    Others that happen to be equal stay: sharing the means and variances that a repair normalised would
    count as weights removed, which the fold did not earn.
    """

    #: The copies, with the names of what they are copies of, as :class:`~onnxfold.passes.base.PassResult` has them.
    copies: Mapping[str, str] = field(default_factory=dict)

    def run(self, view: GraphView) -> PassResult:
        """Rename readers of a copy to the first equal one."""
        first: dict[tuple[str, bytes], str] = {}
        renamed: dict[str, str] = {}
        for copy, original in self.copies.items():
            for name in (original, copy):
                if name in view.weights:
                    key = (original, view.weight(name).tobytes())
                    if first.setdefault(key, name) != name:
                        renamed[name] = first[key]
        return PassResult(view.rename_inputs(renamed))


class ShareEqualWeights(Pass):
    """Let all readers of equal float weights of two and more axes read the first of them.

    Case 1: equal weights. Case 2: a table that ids are looked up in, and a matrix that is its transpose (the head of a
    language model, tied in training and exported twice): what reads the matrix reads a Transpose of the table, which
    runtimes compute once, when they load the model.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rename what is read, and put a Transpose before its first reader."""
        same: dict[str, str] = {}
        turned: dict[str, str] = {}
        for name, (kept, is_turned) in _equal(view):
            (turned if is_turned else same)[name] = kept
        if not same and not turned:
            return PassResult(modified=False)
        results = {name: view.fresh_name(f"{name}_turned") for name in turned}
        view.rename_inputs(same | results)
        nodes: list[NodeProto] = [
            helper.make_node("Transpose", [turned[name]], [result], result, perm=[1, 0])
            for name, result in results.items()
        ]
        view.replace_nodes([*nodes, *view.nodes])
        RemoveUnused()(view)
        return PassResult(modified=True)


def _equal(view: GraphView) -> Iterator[tuple[str, _Source]]:
    """Yield weights that are stored twice, with what is read in place of them."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for name in _candidates(view):
        shape = view.weights[name].shape
        size = tuple(sorted(shape)) if len(shape) == 2 else tuple(shape)
        alike.setdefault((view.weight_type(name), len(shape), size), []).append(name)
    for names in alike.values():
        kept: dict[bytes, list[str]] = {}
        # Tables first, as they stay.
        for name in sorted(names, key=lambda n: not _is_table(view, n)) if len(names) > 1 else ():
            values = view.weight(name)
            others = kept.setdefault(_signature(values), [])
            source = next((s for other in others if (s := _source(view, other, values)) is not None), None)
            if source is None:
                others.append(name)
            else:
                yield name, source


def _candidates(view: GraphView) -> Iterator[str]:
    """Yield float weights that may be read under another name: neither bodies nor callers of the model read them."""
    listed = {info.name for info in (*view.graph.input, *view.graph.output)}
    for name in view.float_weight_names():
        shape = view.weights[name].shape
        is_matrix = sum(d > 1 for d in shape) > 1 and 4 * view.weight_size(name) >= _LEAST_BYTES
        if is_matrix and name not in listed and all(name in reader.input for reader in view.consumers(name)):
            yield name


def _source(view: GraphView, kept: str, values: Array) -> _Source | None:
    """Return a weight as the source of values; None where it holds others."""
    stored = view.weight(kept)
    if stored.shape == values.shape and stored.tobytes() == values.tobytes():
        return kept, False
    if stored.ndim == 2 and stored.T.shape == values.shape and _is_table(view, kept):
        return (kept, True) if np.array_equal(stored.T, values) else None
    return None


def _is_table(view: GraphView, name: str) -> bool:
    """Whether ids that are computed at run time are looked up in a weight."""
    readers = view.consumers(name)
    return any(n.op_type == "Gather" and n.input[0] == name and not view.is_weight(n.input[1]) for n in readers)


def _signature(values: Array) -> bytes:
    return np.diagonal(values.reshape(len(values), -1))[:_SEEN].tobytes()
