"""BatchNormalization in inference mode: an affine map per channel."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Role
from onnxfold.channels.operators import BatchNorm
from onnxfold.channels.registry import Result, channel_rule

ROLES = (Role.SCALE, Role.SHIFT, Role.MEAN, Role.VARIANCE)


#: Epsilon of ONNX where a node names none.
_EPSILON = 1e-5


def normalization(node: NodeContext) -> BatchNorm:
    """Name the parameters."""
    scale, shift, mean, variance = (node.input(index) for index in range(1, 5))
    return BatchNorm(scale, shift, mean, variance, node.number("epsilon", _EPSILON))


@channel_rule("BatchNormalization", computes=normalization, result=Result.IN_PLACE)
def batch_normalization(node: NodeContext) -> None:
    """Read X, scale, B, input_mean, input_var; the vectors lie along axis 1."""
    if node.integer("training_mode", 0) or any(node.outputs[1:]):
        raise CannotDeclareError("it is in training mode; export the model in evaluation mode")
    x, y = node.input(0), node.output()
    for index, role in enumerate(ROLES, start=1):
        if not node.is_weight(node.input(index)):
            raise CannotDeclareError(f"its {role.value} is computed at run time")
        node.use(node.axis(node.input(index), 0), role, node.axis(y, 1 if node.rank(y) > 1 else 0))
    node.link_all(x, y)
