"""Local rewrites: old operators, Dropout, the arithmetic of activations, norms and padding, and QDQ as floats."""

import math
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_float, attr_int, attr_ints, attribute, rewritten, with_input
from onnxfold.graph.patterns import Match, Mismatch, Op, chain, scaled
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult, Pipeline, Rewrite
from onnxfold.passes.normalize.unneeded import RemoveUnused, passes_on
from onnxfold.quantize.integers import read_integers

_ERF_PLUS_1 = Op("Add", (Op("Erf", (scaled("x", 1 / math.sqrt(2)),)), 1.0))
_CLIP_PLUS_3 = Op("Clip", (Op("Add", ("x", 3.0)),))


@dataclass(frozen=True)
class FuseGelu(Rewrite):
    """Replace 0.5 x (1 + erf(x / sqrt(2))), in any order of the factors, by Gelu.

    Quotients may be written as products. Nobody else may read what lies in between.
    """

    patterns = (
        *scaled(Op("Mul", ("x", _ERF_PLUS_1)), 0.5),
        Op("Mul", ("x", scaled(_ERF_PLUS_1, 0.5))),
        Op("Mul", (scaled("x", 0.5), _ERF_PLUS_1)),
    )

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return a Gelu."""
        erf = next(node for node in match.nodes if node.op_type == "Erf")
        return [helper.make_node("Gelu", [match.tensors["x"]], [match.nodes[-1].output[0]], name=erf.name)]


@dataclass(frozen=True)
class FuseHardSwish(Rewrite):
    """Replace x HardSigmoid(x), and x min(max(x + 3, 0), 6) / 6, by HardSwish.

    In int8 every step more is a rounding more. Case 1: (x clip) / 6. Case 2: x (clip / 6). / 6 may be a Div or a Mul.
    Nobody else may read what lies in between.
    """

    patterns = (
        *scaled(Op("Mul", ("x", _CLIP_PLUS_3)), 1 / 6),
        Op("Mul", ("x", scaled(_CLIP_PLUS_3, 1 / 6))),
        Op("Mul", ("x", Op("HardSigmoid", ("x",)))),
    )

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return a HardSwish, if the gate is cut at the right numbers."""
        gate = next(node for node in match.nodes if node.op_type in ("Clip", "HardSigmoid"))
        if gate.op_type == "Clip":
            limits = [_limit(view, gate, 1, "min"), _limit(view, gate, 2, "max")]
            if limits != [0.0, 6.0]:
                raise Mismatch(f"it is cut at {limits}")
        elif (
            not math.isclose(attr_float(gate, "alpha", 0.2), 1 / 6, rel_tol=1e-4)
            or attr_float(gate, "beta", 0.5) != 0.5
        ):
            raise Mismatch("its slope is not a sixth, or its middle not a half")
        last = match.nodes[-1]
        return [helper.make_node("HardSwish", [match.tensors["x"]], [last.output[0]], name=last.name)]


def _limit(view: GraphView, node: NodeProto, index: int, name: str) -> float:
    if len(node.input) > index and view.is_weight(node.input[index]):
        return float(view.weight(node.input[index]).reshape(-1)[0])
    return attr_float(node, name, math.nan)


@dataclass(frozen=True)
class FuseGroupNorm(Rewrite):
    """Replace Reshape to (N, groups, -1), InstanceNormalization, Reshape back by GroupNormalization.

    Scale and bias of the InstanceNormalization must be all ones and all zeros, as a GroupNorm's own scale and bias,
    one per channel, follow as Mul and Add. Nobody else may read what lies in between.
    """

    patterns = (chain("Reshape", "InstanceNormalization", "Reshape"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return a GroupNormalization, if the three nodes are none of something else."""
        first, norm, last = match.nodes
        if not all(view.is_weight(n) for n in norm.input[1:3]):
            raise Mismatch("scale and bias are computed")
        if np.any(view.weight(norm.input[1]) != 1) or np.any(view.weight(norm.input[2])):
            raise Mismatch("scale and bias are not ones and zeros")
        source, inner, result = (view.shape(t) for t in (first.input[0], first.output[0], last.output[0]))
        if source is None or inner is None or source != result or len(inner) != 3 or len(source) < 3:
            raise Mismatch("the last view does not undo the first one")
        channels, groups = source[1], inner[1]
        if source[0] != inner[0] or channels is None or groups is None or None in source[2:] or channels % groups:
            raise Mismatch("the views do not cut channels into groups")
        result_name = norm.output[0]
        scale = view.add_weight(f"{result_name}_scale", np.ones(channels, np.float32))
        bias = view.add_weight(f"{result_name}_bias", np.zeros(channels, np.float32))
        made = helper.make_node(
            "GroupNormalization", [first.input[0], scale, bias], [last.output[0]], norm.name,
            num_groups=groups, epsilon=attr_float(norm, "epsilon", 1e-5),
        )  # fmt: skip
        return [made]


@dataclass(frozen=True)
class FusePadding(Rewrite):
    """Add the amounts of a Pad with zeros to the pads of the Conv that alone reads it.

    Only the spatial axes may be padded, by constant amounts that are not negative, and the Conv must state its own
    pads.
    """

    patterns = (chain("Pad", "Conv"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return the Conv with all pads, on what the Pad reads."""
        pad, conv = match.nodes
        amounts = _amounts(view, pad)
        if attribute(conv, "auto_pad", b"NOTSET") != b"NOTSET":
            raise Mismatch("the Conv chooses its pads itself")
        own = attr_ints(conv, "pads", [0] * len(amounts))
        pads = [a + b for a, b in zip(own, amounts, strict=True)]
        return [rewritten(with_input(conv, 0, pad.input[0]), attributes={"pads": pads})]


def _amounts(view: GraphView, pad: NodeProto) -> list[int]:
    """Return begins and ends of the spatial axes."""
    shape = view.shape(pad.input[0])
    if shape is None or attribute(pad, "mode", b"constant") != b"constant" or attr_float(pad, "value", 0.0):
        raise Mismatch("it does not pad a known number of axes with zeros")
    if not all(view.is_weight(n) for n in pad.input[1:] if n):
        raise Mismatch("what it pads by is computed")
    if len(pad.input) > 2 and pad.input[2] and np.any(view.weight(pad.input[2])):
        raise Mismatch("it does not pad with zeros")
    rank = len(shape)
    pads = view.weight(pad.input[1]) if len(pad.input) > 1 else np.array(attr_ints(pad, "pads"))
    axes = view.weight(pad.input[3]) % rank if len(pad.input) > 3 and pad.input[3] else np.arange(rank)
    amounts = np.zeros((2, rank), np.int64)
    amounts[:, axes.reshape(-1)] = pads.reshape(2, -1)
    if amounts[:, :2].any() or (amounts < 0).any():
        raise Mismatch("it cuts, or pads batch or channels")
    return [int(a) for a in amounts[:, 2:].reshape(-1)]


@dataclass(frozen=True)
class DropInferenceDropout(Rewrite):
    """Turn a Dropout that drops nothing, and whose mask nobody reads, into an Identity.

    EliminateIdentity removes such nodes from between activations; this also reaches the one that writes an output.
    """

    patterns = (Op("Dropout"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return an Identity."""
        (node,) = match.nodes
        if not passes_on(view, node, node.input):
            raise Mismatch("it may drop, or its mask is read")
        return [helper.make_node("Identity", node.input[:1], node.output[:1], node.name)]


#: Since then bounds are inputs; exporters that write Crop are older.
_SLICES_BY_INPUT = 10


@dataclass(frozen=True)
class WriteOldOperators(Rewrite):
    """Replace ImageScaler and Affine by a Mul and an Add, and Crop by a Slice of height and width."""

    patterns = (Op("Affine|Crop|ImageScaler"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return nodes of today."""
        (node,) = match.nodes
        if node.op_type != "Crop":
            factor = np.array(attr_float(node, "scale", attr_float(node, "alpha", 1.0)), np.float32)
            bias = np.array(attribute(node, "bias", [attr_float(node, "beta", 0.0)]), np.float32).reshape(-1, 1, 1)
            scaled = view.fresh_name(f"{node.output[0]}_scaled")
            by, added = view.add_weight(f"{scaled}_by", factor), view.add_weight(f"{scaled}_bias", bias)
            first = helper.make_node("Mul", [node.input[0], by], [scaled], node.name)
            return [first, helper.make_node("Add", [scaled, added], node.output, f"{node.name}_add")]
        if view.opset() >= _SLICES_BY_INPUT:
            raise Mismatch("in this operator set bounds of a Slice are inputs")
        shape, border = view.shape(node.input[0]), attr_ints(node, "border")
        size = attr_ints(node, "scale")  # height and width that are kept
        if shape is None or None in shape[2:] or len(border) < 4:
            raise Mismatch("sizes or borders are unknown")
        starts = [border[1], border[0]]
        kept = size or [int(d or 0) - border[i] - border[i + 2] for d, i in zip(shape[2:], (1, 0), strict=True)]
        ends = [a + b for a, b in zip(starts, kept, strict=True)]
        return [helper.make_node("Slice", node.input, node.output, node.name, starts=starts, ends=ends, axes=[2, 3])]


#: Operators without negative results of what they read here.
_NEVER_BELOW_ZERO = frozenset({"Relu", "Clip", "Sigmoid", "HardSigmoid", "Softmax", "MaxPool", "Flatten", "Reshape"})
_RELU6 = 6.0


@dataclass(frozen=True)
class DropQuantisation(Pass):
    """Dequantise constants, and let readers of a quantised activation read it as it was.

    Quantisers drop a Relu or a Clip to 6 before integers whose range begins at zero: these are put back.
    """

    def run(self, view: GraphView) -> PassResult:
        """Replace and rename."""
        renamed: dict[str, str] = {}
        nodes: list[NodeProto] = []
        for node in view.nodes:
            source = view.producer(node.input[0]) if node.op_type == "DequantizeLinear" else None
            if node.op_type == "DequantizeLinear" and view.is_weight(node.input[0]):
                floats = read_integers(view, node.input, attr_int(node, "axis", 1)).values
                renamed[node.output[0]] = view.add_weight(node.input[0].removesuffix("_quantized"), floats)
            elif source is None or source.op_type != "QuantizeLinear":
                nodes.append(node)
            elif node.output[0] in view.output_names:
                nodes.append(helper.make_node("Identity", source.input[:1], node.output, name=node.name))
            else:
                nodes += (put_back := _clipping_nodes(view, source, view.fresh_name(source.input[0])))
                value = put_back[0].output[0] if put_back else source.input[0]
                renamed[node.output[0]] = renamed.get(value, value)
        if not renamed:
            return PassResult(False)
        view.replace_nodes(nodes)
        view.rename_inputs(renamed)
        return PassResult(True)


def _clipping_nodes(view: GraphView, node: NodeProto, name: str) -> list[NodeProto]:
    """Return the Relu or Clip that the integers of a QuantizeLinear stand for, if they do."""
    producer = view.producer(node.input[0])
    if producer is None or producer.op_type in _NEVER_BELOW_ZERO or len(node.input) < 3:
        return []
    if not view.is_weight(node.input[1]) or not view.is_weight(node.input[2]):
        return []
    scale, zero = float(view.weight(node.input[1])), view.weight(node.input[2])
    limits = np.iinfo(zero.dtype)
    if int(zero) != limits.min:
        return []
    if abs(scale * (limits.max - limits.min) - _RELU6) > scale:
        return [helper.make_node("Relu", [node.input[0]], [name], name=name)]
    bounds = [view.add_weight(f"{name}_{n}", np.array(v, np.float32)) for n, v in (("min", 0.0), ("max", _RELU6))]
    return [helper.make_node("Clip", [node.input[0], *bounds], [name], name=name)]


#: Before an export that quantises by itself.
TO_FLOATS = Pipeline((DropQuantisation(), RemoveUnused()))
