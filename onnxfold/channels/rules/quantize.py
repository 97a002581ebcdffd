"""QuantizeLinear and DequantizeLinear of activations."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.registry import channel_rule


@channel_rule("QuantizeLinear", "DequantizeLinear")
def quantize(node: NodeContext) -> None:
    """One scale for the whole tensor is an elementwise map; integer weights are not averaged."""
    if node.is_weight(node.input(0)):
        raise CannotDeclareError("the weight is quantised: fold the float model, then quantise it")
    scale = node.view.shape(node.input(1))
    if scale is None or any(d != 1 for d in scale):
        raise CannotDeclareError("it has one fixed scale per channel")
    node.link_all(node.input(0), node.output())
