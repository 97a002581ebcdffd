"""Normalisations over the activations of one sample."""

from onnxfold.channels.context import CannotDeclareError, NodeContext, Result, channel_rule
from onnxfold.channels.declarations import Axis, BatchNorm, Role
from onnxfold.language.lookups import MICROSOFT, NORMS, SUM, SUM_AND_NORM

_OVER_CHANNELS = (
    "its mean and variance are taken over these channels, and merging channels changes their weight in them"
)


#: Layers, and the operators between their results and a mean of these in a normalisation.
_LAYERS = frozenset({"Conv", "Gemm", "MatMul"})
_STEPS = frozenset({
    "Add", "Cast", "Clip", "Div", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Mish",
    "Mul", "Pow", "PRelu", "ReduceMean", "Relu", "Selu", "Sigmoid", "Softplus", "Sub", "Tanh",
})  # fmt: skip


def averages_one_layer(node: NodeContext, axis: int) -> bool:
    """Whether one layer alone makes the channels that a node averages: no residual stream, and no table of words."""
    view, tensors, layers = node.view, [node.input(0)], 0
    if not node.is_live(node.axis(node.input(0), axis)):
        return False
    for tensor in tensors:
        made = view.producer(tensor)
        adds = (reader for reader in view.consumers(tensor) if reader.op_type == "Add")
        if made is None or any(not any(map(view.is_weight, add.input)) for add in adds):
            return False
        live = [name for name in made.input if name and not view.is_weight(name)]
        if made.op_type in _LAYERS:
            source = view.producer(live[0]) if len(live) == 1 else made
            if source is made or (source is not None and source.op_type == "Gather"):
                return False
            layers += 1
        elif made.op_type in _STEPS:
            tensors += [name for name in live if name not in tensors]
        else:
            return False
    return layers == 1


@channel_rule("InstanceNormalization", mixes="its mean and variance are taken over this axis")
def instance_normalization(node: NodeContext) -> None:
    """Every channel is normalised by itself; scale and bias lie along axis 1.

    Where every position of axis 1 is a group of channels (GroupNormalization before operator set 18), channels lie
    along the axes behind.
    """
    x, y = node.input(0), node.output()
    node.carry([0, 1])
    for axis in range(2, node.rank(x)):
        for groups in dict.fromkeys((1, node.shape(x)[1] or 1)):
            if node.is_live(Axis(x, axis, groups)):
                node.link(Axis(x, axis, groups), Axis(y, axis, groups))
                node.equal_blocks(Axis(x, axis, groups), groups, averaged=True)
    _scale_and_bias(node)


def _scale_and_bias(node: NodeContext, axis: int = 1) -> None:
    for index, role in ((1, Role.PARAMETER), (2, Role.BIAS)):
        if node.input(index):
            node.hold(node.axis(node.input(index), 0), role, node.axis(node.output(), axis))


@channel_rule(*NORMS, mixes=_OVER_CHANNELS)
def layer_normalization(node: NodeContext) -> None:
    """Axes in front of `axis` are independent samples; onnxruntime writes the last one into the default domain."""
    axis = node.integer("axis", -1) % node.rank(node.input(0))
    for output in filter(None, node.outputs):
        for i in range(min(axis, node.rank(output))):
            node.link(node.axis(node.input(0), i), node.axis(output, i))
    if axis < node.rank(node.input(0)) - 1:
        return
    if averages_one_layer(node, axis):
        node.carry([axis])
        node.equal_blocks(node.axis(node.input(0), axis), 1, averaged=True)
        _scale_and_bias(node, axis)
    else:
        centred = node.op_type == "LayerNormalization"
        shift = node.input(2) if centred else ""
        node.norm(node.inputs[:1], node.output(), node.input(1), shift=shift, centred=centred)


@channel_rule(*SUM_AND_NORM, domain=MICROSOFT, mixes=_OVER_CHANNELS)
def normalised_sum(node: NodeContext) -> None:
    """Add up two inputs, the second broadcast to the first, and a vector; output 3 is the sum, the residual stream."""
    norm, _, bias = SUM_AND_NORM[node.op_type]
    centred = norm == "LayerNormalization"
    for result in (node.output(0), node.output(SUM)):
        for operand in (node.input(0), node.input(1)) if result else ():
            for i in range(1 if result == node.output(SUM) else 2, node.rank(operand) + 1):
                source = node.axis(operand, -i)
                if operand == node.input(0) or node.width(source) != 1:
                    node.link(source, node.axis(result, -i))
    if node.output(SUM) and node.input(bias):
        node.link_broadcast(node.input(bias), node.output(SUM), Role.BIAS)
    for operand in (node.input(0), node.input(1)):
        node.block(node.axis(operand, -1), _OVER_CHANNELS)
    parts = [name for name in (node.input(0), node.input(1), node.output(SUM)) if name]
    shift = node.input(3) if centred else ""
    node.norm(parts, node.output(), node.input(2), shift=shift, bias=node.input(bias), centred=centred)


@channel_rule("EmbedLayerNormalization", domain="com.microsoft", mixes=_OVER_CHANNELS)
def embed_layer_normalization(node: NodeContext) -> None:
    """Sum of rows of tables, normalised; a table's rows are looked up by number."""
    for i in (2, 3, 4):
        if node.input(i):
            node.block(node.axis(node.input(i), 0), "it picks single positions of this axis")


@channel_rule("GroupNormalization", mixes="its mean and variance are taken over this axis")
def group_normalization(node: NodeContext) -> None:
    """Channels of one group share their statistics, in operator set 18 a scale and a bias, too; groups stay equal."""
    x = node.input(0)
    node.carry([0, 1])
    node.equal_blocks(node.axis(x, 1), node.integer("num_groups", 1), averaged=True)
    if node.shape(node.input(1)) == (node.shape(x)[1],):
        _scale_and_bias(node)


@channel_rule("LRN", mixes="it divides every channel by the sum of squares of its neighbours")
def local_response_normalization(node: NodeContext) -> None:
    """All axes but the channels pass through."""
    node.link_all(node.input(0), node.output(), but=[1])


_DEPENDS = "every position of this axis depends on the others"
_NORMALISES = "it normalises over this axis, where a merged channel would count only once"


@channel_rule("Hardmax", "LogSoftmax", "Softmax", since=1, mixes=_NORMALISES)
def softmax_flattened(node: NodeContext) -> None:
    """Before opset 13 all axes from `axis` on are normalised together."""
    node.carry(range(node.integer("axis", 1) % node.rank(node.input(0))))


@channel_rule("Hardmax", "LogSoftmax", "Softmax", since=13, mixes=_NORMALISES)
@channel_rule("LpNormalization", mixes=_DEPENDS)
@channel_rule("TopK", mixes="its results are ranks and positions on this axis")
def along_one_axis(node: NodeContext) -> None:
    """One axis is normalised, or sorted and cut."""
    for output in filter(None, node.outputs):
        node.link_all(node.input(0), output, but=[node.integer("axis", -1)])


@channel_rule("CumSum", mixes=_DEPENDS)
def cumulative_sum(node: NodeContext) -> None:
    """An input names the axis that is added up."""
    node.link_all(node.input(0), node.output(), but=node.constant_ints(1, "axis")[:1])


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
    y = node.output()
    for index, role in enumerate(ROLES, start=1):
        weight = node.weight(index, f"its {role.value}")
        node.use(node.axis(weight, 0), role, node.axis(y, 1 if node.rank(y) > 1 else 0))
    node.link_all(node.input(0), y)
