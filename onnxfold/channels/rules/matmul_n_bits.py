"""MatMulNBits of onnxruntime: a product with a weight of 2, 4 or 8 bits."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.registry import channel_rule


@channel_rule("MatMulNBits", domain="com.microsoft")
def matmul_n_bits(node: NodeContext) -> None:
    """Products that are not folded as numbers: in a body, with an order of columns, or packed for a processor."""
    raise CannotDeclareError(
        f"the weight is quantised in blocks of {node.integer('block_size', 0)}: fold the float model, then quantise it"
    )
