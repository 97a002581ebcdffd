"""Entries of a weight for the channels of a group, read and written by unit."""

import numpy as np

from onnxfold.channels.group import Member
from onnxfold.graph.axes import put_rows, scale_rows, take_rows
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView


def rows_of(view: GraphView, member: Member) -> Array:
    """Return the entries of a group's units along a weight's axis, shape (n_units, r, rest), in the working type."""
    return taken_rows(view.weight(member.axis.tensor), member)


def put_rows_of(view: GraphView, member: Member, rows: Array) -> None:
    """Write entries of shape (n_units, r, rest); the weight keeps its type."""
    view.set_weight(member.axis.tensor, replaced_rows(view.weight(member.axis.tensor), member, rows))


def taken_rows(values: Array, member: Member) -> Array:
    """Return the units' entries of an array that is shaped like the member's weight."""
    return take_rows(values, member.axis.axis, member.axis.blocks, member.positions)


def replaced_rows(values: Array, member: Member, rows: Array) -> Array:
    """Return a copy of an array that is shaped like the member's weight, with other entries for the units."""
    return put_rows(values, member.axis.axis, member.axis.blocks, member.positions, rows)


def per_unit(view: GraphView, member: Member) -> Array:
    """Return a per-channel vector by unit, shape (n_units, r)."""
    return rows_of(view, member).reshape(*member.positions.shape, -1)[:, :, 0]


def set_per_unit(view: GraphView, member: Member, values: Array) -> None:
    """Write a per-channel vector given by unit, shape (n_units, r)."""
    put_rows_of(view, member, np.asarray(values).reshape(*member.positions.shape, 1))


def scale_units(view: GraphView, member: Member, factor: Array) -> None:
    """Multiply the rows of units by factors of shape (n_units, r)."""
    if factor.shape[1] > 1:
        put_rows_of(view, member, rows_of(view, member) * factor[:, :, None])
        return
    values, axis = view.weight(member.axis.tensor), member.axis
    view.set_weight(axis.tensor, scale_rows(values, axis.axis, axis.blocks, member.positions, factor[:, 0]))
