"""Networks are opened and brought into forms that correspond: one operator set, one way to write a layer."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, version_converter

from onnxfold.channels import find_groups
from onnxfold.channels.layers import linear
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.passes.fusion.fuse_batch_norm import FuseBatchNorm
from onnxfold.passes.join.common_form import COMMON_FORM
from onnxfold.passes.join.join import match_networks
from onnxfold.passes.join.structure import LayoutError, Match, SourceNetwork
from onnxfold.passes.normalize.pipelines import NORMALIZE
from onnxfold.passes.normalize.unneeded import RemoveUnused


def names_of(models: Sequence[ModelLike]) -> list[str]:
    """Return the names of models in messages: their files, or their numbers."""
    return [
        f"model {i + 1}" if isinstance(model, ModelProto) else f"'{Path(model).name}'" for i, model in enumerate(models)
    ]


def open_networks(
    models: Sequence[ModelLike], input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[list[SourceNetwork], list[Match], tuple[str, ...]]:
    """Open networks, and match them to the first one."""
    names = names_of(models)
    views = [load(model) for model in models]
    if input_shapes:
        views = [_assume_shapes(view, views[0], input_shapes) for view in views]
    views, notes = _one_opset(views, names)
    for view in views:
        NORMALIZE(view)
    has_norms = [any(node.op_type == "BatchNormalization" for node in view.nodes) for view in views]
    if len(set(has_norms)) > 1:
        for view in views:
            FuseBatchNorm()(view)
            RemoveUnused()(view)
        notes = (*notes, "BatchNormalizations were merged into their layers: not all of the networks have them")
    try:
        return (*_corresponding(views, names), notes)
    except LayoutError:
        changed = [COMMON_FORM(view).modified for view in views]
        if not any(changed):
            raise
        return (*_corresponding(views, names), notes)


def _assume_shapes(view: GraphView, first: GraphView, shapes: Mapping[str, Sequence[int]]) -> GraphView:
    places = dict(zip(first.input_names, view.input_names, strict=False))
    view.assume({places.get(name, name): tuple(shape) for name, shape in shapes.items()})
    return view


def _one_opset(views: Sequence[GraphView], names: Sequence[str]) -> tuple[list[GraphView], tuple[str, ...]]:
    """Convert networks of an older operator set to the newest one among them."""
    newest = max(view.opset() for view in views)
    newest_views, notes = [], []
    for view, name in zip(views, names, strict=True):
        old = view.opset()
        if old == newest:
            newest_views.append(view)
            continue
        try:
            converted = version_converter.convert_version(to_model(view), newest)
            onnx.checker.check_model(converted)
        except Exception as error:  # the converter raises what its C++ code raises
            text = " ".join(str(error).split())[:200]
            raise LayoutError(
                f"{name} has operator set {old}, and another network {newest}; it cannot be converted: {text}"
            ) from None
        made = load(converted)
        made.assume(dict(view.input_shapes))
        newest_views.append(made)
        notes.append(f"{name} was converted from operator set {old} to {newest}")
    return newest_views, tuple(notes)


def _corresponding(views: Sequence[GraphView], names: Sequence[str]) -> tuple[list[SourceNetwork], list[Match]]:
    networks = [SourceNetwork(name, view, find_groups(view)) for name, view in zip(names, views, strict=True)]
    matches = match_networks(networks)
    lacking = {(i if which else 0, key) for i, m in enumerate(matches) for which, key in m.lacks_bias}
    if not lacking:
        return networks, matches
    for i, key in sorted(lacking):
        _give_bias(views[i], key)
    networks = [SourceNetwork(name, view, find_groups(view)) for name, view in zip(names, views, strict=True)]
    return networks, match_networks(networks)


def _give_bias(view: GraphView, key: str) -> None:
    """Add zeros where counterparts of a layer add a bias."""
    node = view.producer(key)
    operator = None if node is None else linear(view, node)
    assert node is not None
    assert operator is not None
    assert operator.rows is not None
    weight = view.weights[operator.weight]
    dtype = view.weight(operator.weight).dtype
    zeros = np.zeros(weight.shape[operator.rows.axis] * operator.rows.blocks, dtype)
    view.fill_input(node, operator.bias.number, view.add_weight(f"{key}_bias", zeros))
