"""What the channel analysis says about a model, as text that a test can state in one line."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from onnxfold.channels.declarations import Block, Link, Role
from onnxfold.channels.group import FoldGroup, Member
from onnxfold.channels.walker import declare
from onnxfold.graph.files.load import load
from onnxfold.inspection import inspect_model

_SIGNS = {
    Role.PRODUCER: "+",
    Role.CONSUMER: "-",
    Role.BIAS: "b:",
    Role.PARAMETER: "p:",
    Role.SCALE: "s:",
    Role.SHIFT: "s:",
    Role.MEAN: "s:",
    Role.VARIANCE: "s:",
}


def groups(model: onnx.ModelProto) -> list[str]:
    """Return a line per group: name, width, blocks, and its members but for BatchNormalization's vectors.

    ``+`` marks rows that produce channels, ``-`` columns that consume them, ``b:`` biases, ``p:`` parameters; ``*4``
    says that every channel has four positions on the axis.
    """
    return [_group(g) for g in inspect_model(model).groups]


def _group(group: FoldGroup) -> str:
    blocks = f"/{group.block_count}" if group.block_count > 1 else ""
    members = [_member(m) for m in group.members if _SIGNS[m.role] != "s:"]
    return f"{group.name} {group.size}{blocks}: {' '.join(sorted(members))}"


def _member(member: Member) -> str:
    repeat = member.positions.shape[1]
    return f"{_SIGNS[member.role]}{member.axis.tensor}.{member.axis.axis}{f'*{repeat}' if repeat > 1 else ''}"


def reasons(model: onnx.ModelProto) -> dict[str, str]:
    """Return why each refused axis stays, by 'tensor.axis' of the weight; what only meets the interface is left out."""
    found = {}
    for refusal in inspect_model(model).refusals:
        if "it is the model's" not in refusal.reason:
            tensor, axis = refusal.weight, refusal.axis.rsplit("axis ", 1)[1].rstrip(")")
            found[f"{tensor}.{axis}"] = refusal.reason
    return found


def golden(model: onnx.ModelProto) -> str:
    """Return everything that inspection finds, for files that are compared exactly."""
    found = inspect_model(model)
    lines = []
    for group in found.groups:
        blocks = f" in {group.block_count} blocks" if group.block_count > 1 else ""
        lines.append(f"group {group.name}: {group.size} channels{blocks}, produced by {', '.join(group.nodes)}")
        lines += [
            f"    {m.role.value:<9} {m.axis.tensor} axis {m.axis.axis}, {m.positions.shape[1]} per channel, "
            f"used by {', '.join(u.node for u in m.uses)}"
            for m in group.members
        ]
    for refusal in found.refusals:
        lines.append(f"refused {refusal.axis} of {refusal.op_type} {refusal.node}, {refusal.weights} weights")
        lines.append(f"    {refusal.reason}")
    return "\n".join(lines) + "\n"


def node_axes(
    op: str,
    shapes: list[list[int | str]],
    attrs: dict[str, object] | None = None,
    constants: dict[str, ArrayLike] | None = None,
    opset: int = 17,
    outputs: int = 1,
    types: tuple[int, ...] = (),
) -> tuple[str, str]:
    """Declare one node on inputs a, b, ... and constants; return the links of axes and the blocked axes of activations.

    A link of some positions only is written with them: ``a.1[0,1]>y.1``.
    """
    names = [chr(ord("a") + i) for i in range(len(shapes))]
    results = [chr(ord("y") + i) for i in range(outputs)]
    inputs = names + [name if name in (constants or {}) else "" for name in (constants or {})]
    node = helper.make_node(op, inputs, results, **(attrs or {}))
    infos = [
        helper.make_tensor_value_info(name, types[i] if types else TensorProto.FLOAT, shape)
        for i, (name, shape) in enumerate(zip(names, shapes, strict=True))
    ]
    weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=r) for r in results], weights)
    view = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))
    declarations = declare(view)
    links = [_link(d, view.shape(d.a.tensor), view.shape(d.b.tensor)) for d in declarations if isinstance(d, Link)]
    blocks = [
        f"{d.axis.tensor}.{d.axis.axis}"
        for d in declarations
        if isinstance(d, Block) and d.node and not view.is_weight(d.axis.tensor)
    ]
    return " ".join(links), " ".join(sorted(set(blocks)))


def _link(link: Link, a: tuple[int | None, ...] | None, b: tuple[int | None, ...] | None) -> str:
    def side(tensor: str, axis: int, width: int | None, positions: np.ndarray) -> str:
        plain = positions.tolist() == list(range(width or 0))
        return f"{tensor}.{axis}" + ("" if plain else str(positions.tolist()).replace(" ", ""))

    assert a is not None
    assert b is not None
    left = side(link.a.tensor, link.a.axis, a[link.a.axis], link.a_positions)
    right = side(link.b.tensor, link.b.axis, b[link.b.axis], link.b_positions)
    return f"{left}>{right}"
