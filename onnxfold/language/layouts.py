"""Facts about operators of language models that several rooms read: norms of rows, norms of sums, attention."""

from types import MappingProxyType

MICROSOFT = "com.microsoft"
#: Operators that norm every row of the last axis by itself.
NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
#: Norms of onnxruntime that add their first two inputs: the operator that norms a single tensor, with the places of its
#: other inputs, and the input that is added, too.
SUM_AND_NORM = MappingProxyType(
    {
        "SkipSimplifiedLayerNormalization": ("SimplifiedLayerNormalization", (2,), 3),
        "SkipLayerNormalization": ("LayerNormalization", (2, 3), 4),
    }
)
#: The output of these that holds the sum.
SUM = 3
#: Operators of attention that read queries first, and the input that is a cache of keys.
CACHED_KEYS = MappingProxyType(
    {
        ("GroupQueryAttention", MICROSOFT): 3,
        ("MultiHeadAttention", MICROSOFT): 6,
        ("Attention", ""): 4,
        ("Attention", "ai.onnx"): 4,
    }
)
