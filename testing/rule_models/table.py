"""Models of all rules by name, and what is special about some."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from onnxfold.channels.rules.elementwise import BROADCASTS, UNARY
from testing.rule_models.attention import (
    through_attention,
    through_embedding,
    through_few_bits,
    through_grouped_queries,
    through_multi_head_attention,
    through_rotary,
    through_self_attention,
)
from testing.rule_models.functions import (
    through_binary,
    through_cast_like,
    through_dropout,
    through_microsoft_gelu,
    through_quantize,
    through_unary,
)
from testing.rule_models.layers import (
    through_conv,
    through_conv_transpose,
    through_einsum,
    through_fused_conv,
    through_fused_gemm,
    through_fused_matmul,
    through_gemm,
    through_matmul,
    through_recurrent,
)
from testing.rule_models.net import WIDTH, Middle, build_net, plus
from testing.rule_models.normalisations import (
    simplified_layer_norm,
    through_batch_norm,
    through_group_norm,
    through_instance_norm,
    through_lp_normalization,
    through_lrn,
    through_norm_over_rows,
    through_reshaped_group_norm,
    through_skip_norm,
    through_softmax,
)
from testing.rule_models.reductions import through_arg, through_cum_sum, through_pool, through_reduce, through_top_k
from testing.rule_models.selections import (
    through_concat,
    through_gather,
    through_gather_order,
    through_shuffle,
    through_slice,
    through_split,
)
from testing.rule_models.views import (
    through_computed_tile,
    through_depth_to_space,
    through_expand,
    through_flatten,
    through_pad,
    through_reshape,
    through_resize,
    through_shape,
    through_size,
    through_space_to_depth,
    through_squeeze,
    through_tile,
    through_transpose,
)


def _build_table() -> dict[str, Callable[[], onnx.ModelProto]]:
    table: dict[str, Callable[[], onnx.ModelProto]] = {}

    def add(name: str, op: str, middle: Middle, opset: int = 17) -> None:
        table[name] = lambda: build_net(op, middle, opset)

    for op in UNARY:
        add(op, op, through_unary(op))
    for op in BROADCASTS:
        add(op, op, through_binary(op))
    for op in ("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"):
        add(op, op, through_pool(op))
    for reduction in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"):
        op = f"Reduce{reduction}"
        for opset in (12, 18):
            for keepdims in (0, 1):
                add(f"{op}-{opset}-keepdims{keepdims}", op, through_reduce(op, opset, keepdims), opset)
    for op in ("ArgMax", "ArgMin"):
        add(op, op, through_arg(op))
    for opset in (10, 17, 18):
        add(f"Pad-{opset}", "Pad", through_pad(opset), opset)
    for opset in (12, 13):
        add(f"Squeeze-Unsqueeze-{opset}", "Squeeze", through_squeeze(opset), opset)
    for op, middle in {
        "BatchNormalization": through_batch_norm,
        "CastLike": through_cast_like,
        "Concat": through_concat,
        "Conv": through_conv,
        "ConvTranspose": through_conv_transpose,
        "Dropout": through_dropout,
        "Flatten": through_flatten,
        "Gemm": through_gemm,
        "MatMul": through_matmul,
        "Reshape": through_reshape,
        "Shape": through_shape,
        "Size": through_size,
        "Transpose": through_transpose,
    }.items():
        add(op, op, middle)
    for op, middle in {
        "CumSum": through_cum_sum,
        "Einsum": through_einsum,
        "Expand": through_expand,
        "FusedConv": through_fused_conv,
        "FusedGemm": through_fused_gemm,
        "FusedMatMul": through_fused_matmul,
        "Gather": through_gather,
        "GroupNormalization": through_group_norm,
        "InstanceNormalization": through_instance_norm,
        "LRN": through_lrn,
        "LpNormalization": through_lp_normalization,
        "QuantizeLinear": through_quantize,
        "SpaceToDepth": through_space_to_depth,
        "Tile": through_tile,
        "TopK": through_top_k,
        "LayerNormalization": through_norm_over_rows("LayerNormalization", 2),
        "RMSNormalization": through_norm_over_rows("RMSNormalization", 1),
        "BiasGelu": through_microsoft_gelu("BiasGelu", bias=True),
        "FastGelu": through_microsoft_gelu("FastGelu"),
        "QuickGelu": through_microsoft_gelu("QuickGelu"),
        "SkipLayerNormalization": through_skip_norm("SkipLayerNormalization"),
        "SkipLayerNormalization-sum": through_skip_norm("SkipLayerNormalization", sums=True),
        "SkipSimplifiedLayerNormalization": through_skip_norm("SkipSimplifiedLayerNormalization"),
        "SkipSimplifiedLayerNormalization-sum": through_skip_norm("SkipSimplifiedLayerNormalization", sums=True),
    }.items():
        add(op, op, middle)
    add("Tile-computed", "Tile", through_computed_tile)
    table["SimplifiedLayerNormalization"] = simplified_layer_norm
    add("Gelu-microsoft", "Relu", through_microsoft_gelu("Gelu"))
    for mode in ("DCR", "CRD"):
        add(f"DepthToSpace-{mode}", "DepthToSpace", through_depth_to_space(mode))
    add("GroupNormalization-reshaped", "InstanceNormalization", through_reshaped_group_norm, 17)
    for opset in (12, 17):
        for op in ("Hardmax", "LogSoftmax", "Softmax"):
            add(f"{op}-{opset}", op, through_softmax(op), opset)
        add(f"Split-{opset}", "Split", through_split(opset), opset)
    for opset in (12, 17, 18):
        add(f"Split-equal-{opset}", "Split", through_split(opset, equal=True), opset)
    for opset in (9, 17):
        add(f"Slice-{opset}", "Slice", through_slice(opset), opset)
    for opset in (8, 9):
        add(f"Upsample-{opset}", "Upsample", through_resize(opset), opset)
    for opset in (10, 13, 18):
        add(f"Resize-{opset}", "Resize", through_resize(opset), opset)
    add("Resize-sizes", "Resize", through_resize(17, sizes=True))
    add("Crop", "Crop", lambda g, x: g.node("Crop", [x], [WIDTH, 4, 6], border=[1, 2, 1, 2]), 9)
    add("Shuffle", "Transpose", through_shuffle)
    add("Gather-order", "Gather", through_gather_order)
    add("Trilu", "Trilu", lambda g, x: g.node("Trilu", [x], g.shapes[x]))
    for op in ("LSTM", "GRU", "RNN"):
        add(op, op, through_recurrent(op))
        add(f"{op}-bidirectional", op, through_recurrent(op, direction="bidirectional"))
    for packed in (False, True):
        for cached in (False, True):
            name = f"GroupQueryAttention{'-packed' * packed}{'-cached' * cached}"
            add(name, "Relu", through_grouped_queries(packed, cached))
            add(f"Attention-23{'-flat' * packed}{'-cached' * cached}", "Relu", through_attention(packed, cached), 23)
        add(f"MultiHeadAttention{'-crossed' * packed}", "Relu", through_multi_head_attention(packed))
        for opset in (17, 23):
            name = f"RotaryEmbedding-{opset}{'-flat' * packed}"
            add(name, "Relu", through_rotary(opset == 17, packed), opset)
    for sizes in (None, (12, 12, 24)):
        add(f"Attention-microsoft{'-sizes' if sizes else ''}", "Relu", through_self_attention(sizes))
    add("EmbedLayerNormalization", "Relu", through_embedding)
    add("MatMulNBits", "Relu", through_few_bits)
    add("PRelu", "PRelu", lambda g, x: g.prelu(plus(g, x, -0.5)))
    return table


RULE_MODELS = _build_table()

#: Channels end at these; the word stands in the reason.
BLOCKING = {"LRN": "neighbours", "MatMulNBits": "quantised in blocks of 16"}

#: Written in a form that only the normalised graph can be widened in.
NEEDS_NORMAL_FORM = {"Shuffle", "Split-equal-12", "Split-equal-17", "Split-equal-18"}
