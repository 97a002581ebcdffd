"""Pad, also of the channel axis (ResNet option-A shortcuts), and Crop."""

import numpy as np

from onnxfold.channels.context import NodeContext
from onnxfold.channels.registry import channel_rule

_MIXES = "it pads this axis with values of other positions"


@channel_rule("Pad", since=1, mixes=_MIXES)
def pad_attribute(node: NodeContext) -> None:
    """Amounts are an attribute before opset 11."""
    _pad(node, node.integers("pads"), attribute="pads")


@channel_rule("Pad", since=11, mixes=_MIXES)
def pad_input(node: NodeContext) -> None:
    """Amounts are input 1; from opset 18 input 3 may name the padded axes."""
    amounts = node.constant_ints(1, "padding")
    rank = node.rank(node.input(0))
    if not node.input(3):
        _pad(node, amounts, input_index=1)
        return
    axes = [a % rank for a in node.constant_ints(3, "list of axes")]
    pads = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        pads[axis], pads[axis + rank] = amounts[i], amounts[i + len(axes)]
    places = {axis: i for i, axis in enumerate(axes)}
    _pad(node, pads, input_index=1, places=places)


@channel_rule("Crop", mixes="it cuts off positions at the ends of this axis")
def crop(node: NodeContext) -> None:
    """Cut the borders of images; of an early ONNX, which onnxruntime still runs."""
    for axis in (0, 1):
        node.link(node.axis(node.input(0), axis), node.axis(node.output(), axis))


def _pad(
    node: NodeContext,
    pads: list[int],
    *,
    attribute: str = "",
    input_index: int = -1,
    places: dict[int, int] | None = None,
) -> None:
    """Input position i is position begin + i of the result; what is added is constant, hence foldable."""
    x, y = node.input(0), node.output()
    rank = node.rank(x)
    span = len(places) if places is not None else rank
    for axis in range(rank):
        before, after = pads[axis], pads[axis + rank]
        source, result = node.axis(x, axis), node.axis(y, axis)
        width = node.width(source)
        if (before, after) == (0, 0):
            node.link(source, result)
        elif width is not None and before >= 0 and after >= 0 and _mode(node) == "constant":
            node.link(source, result, None, np.arange(before, before + width))
            place = places[axis] if places is not None else axis
            target = {"attribute": attribute, "input_index": input_index}
            node.count(result, start=0, stop=before, element=place, **target)  # type: ignore[arg-type]
            node.count(
                result,
                start=before + width,
                stop=before + width + after,
                element=place + span,
                **target,  # type: ignore[arg-type]
            )


def _mode(node: NodeContext) -> str:
    value = node.value("mode", b"constant")
    return value.decode() if isinstance(value, bytes) else str(value)
