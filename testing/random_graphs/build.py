"""One attempt at a graph: blocks on random tensors, until it is large enough."""

from __future__ import annotations

import math

import numpy as np
import onnx

from testing.random_graphs import (
    attention,
    broadcast,
    composite,
    elementwise,
    linear,
    normalisations,
    reductions,
    resizing,
    selections,
    views,
)
from testing.random_graphs.blocks import Placement
from testing.random_graphs.common import MAX_ELEMENTS, STATIC_BATCH, DoesNotFitError
from testing.random_graphs.finish import finish
from testing.random_graphs.focus import FOCUS, block_name, draw_opset, opsets_of
from testing.random_graphs.network import Network

#: Blocks of these have double kernels in onnxruntime.
_DOUBLE = (
    "Gemm", "MatMul", "Einsum", "Residual", "Siamese", "Sigmoid", "Tanh", "Relu", "Abs", "Neg", "Exp", "Sqrt",
    "Add", "Sub", "Mul", "Div", "Max", "Min", "ReduceMean", "ReduceSum", "ReduceMax", "Flatten", "Reshape", "Squeeze",
    "Unsqueeze", "Transpose", "Concat", "Split", "Slice", "Gather", "Softmax", "Expand", "Identity",
    "LayerNormalization",
    "BatchNormalization", "Where", "Pad", "ViewChain", "Shape",
)  # fmt: skip
_HALF = (*_DOUBLE, "Conv", "ConvTranspose", "PRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Gate", "Shuffle",
         "Cast", "LeakyRelu", "Clip", "InstanceNormalization", "DepthToSpace", "Sum", "Outer")  # fmt: skip
#: The order decides what a seed gives.
_FAMILIES = (
    linear,
    composite,
    elementwise,
    broadcast,
    reductions,
    normalisations,
    views,
    selections,
    resizing,
    attention,
)

BLOCKS: dict[str, list[Placement]] = {}
for _family in _FAMILIES:
    for _name, _placements in _family.place.by_name.items():
        BLOCKS.setdefault(_name, []).extend(_placements)


def build(seed: int, attempt: int) -> onnx.ModelProto:
    """Return the graph of one attempt, without a check that it is valid.

    Raises
    ------
    DoesNotFitError, GeneratorError
        If the attempt leads to nothing.
    """
    rng = np.random.default_rng([seed, attempt, 11])
    # The rule to exercise goes round by the seed, so that every one comes up equally often.
    domain, rule = FOCUS[seed % len(FOCUS)]
    focus = [block_name(domain, rule.op_type)]
    opset = draw_opset(rng, opsets_of(domain, rule))
    kind = rng.random()
    usual = attempt > 3 or kind < 0.9
    dtype = np.dtype(np.float32 if usual else np.float64 if kind < 0.95 else np.float16)
    g = Network(rng, opset, dtype, STATIC_BATCH if rng.random() < 0.35 else None)
    names = [n for n in BLOCKS if usual or n in (_DOUBLE if dtype == np.float64 else _HALF)]
    if not usual and focus[0] not in names:
        focus = []
    totals = np.array([sum(w for _, _, w in BLOCKS[n]) for n in names])

    for _ in range(g.integer(1, 3) if g.chance(0.3) else 1):
        rank = 1 + int(rng.choice(4, p=[0.2, 0.25, 0.45, 0.1]))
        if dtype == np.float64:
            rank = min(rank, 2)
        sizes = {1: [8, 5, 12], 2: [6, 7, 8], 3: [4, 5, 6], 4: [3, 3, 4]}[rank]
        x = g.add_input((g.integer(1, 4) if rank > 1 else g.choice(sizes), *[g.choice(sizes) for _ in range(rank - 1)]))
        g.pool.append(g.activation(g.layer(x)))

    goal = g.integer(4, 25)
    steps = 0
    at = g.integer(0, 3)
    while (len(g.nodes) < goal or focus) and steps < 60:
        steps += 1
        forced = bool(focus) and steps > at
        name = focus[0] if forced else str(rng.choice(names, p=totals / totals.sum()))
        if _place(g, name):
            if forced:
                focus.pop()
            if g.chance(0.3):
                g.pool.append(g.layer(g.pool[-1]))
            if g.chance(0.3):
                g.pool.append(g.activation(g.pool[-1]))
    return finish(g)


def _place(g: Network, name: str) -> bool:
    """Place a block on a tensor of the pool that it fits; tensors that grew too large are pooled first."""
    choices = BLOCKS[name]
    function, ranks, _ = choices[
        int(g.rng.choice(len(choices), p=np.array([w for _, _, w in choices]) / sum(w for _, _, w in choices)))
    ]
    fitting = [p for p in g.pool if len(g.shapes[p]) in ranks and math.prod(g.shapes[p]) <= MAX_ELEMENTS]
    mark = g.mark()
    try:
        recent = g.chance(0.7)
        x = (fitting[-1] if recent else g.choice(fitting)) if fitting else _adapted(g, ranks)
        y = function(g, x, name)
        if math.prod(g.shapes[y]) > 4 * MAX_ELEMENTS or not 1 <= len(g.shapes[y]) <= 4 or 0 in g.shapes[y]:
            raise DoesNotFitError  # noqa: TRY301
    except DoesNotFitError:
        g.roll_back(mark)
        return False
    g.pool.append(y)
    return True


def _adapted(g: Network, ranks: range) -> str:
    """Bring some tensor to a rank that fits."""
    x = g.choice(g.pool)
    while math.prod(g.shapes[x]) > MAX_ELEMENTS:
        x = g.reduce("ReduceMean", x, [len(g.shapes[x])], 0 if len(g.shapes[x]) > 1 else 1)
    shape = list(g.shapes[x])
    if len(shape) > ranks[-1]:
        while len(shape) > ranks[-1]:
            shape[-2:] = [shape[-2] * shape[-1]]
        return g.reshape(x, shape)
    # An image from a vector: channels times positions.
    total = math.prod(shape)
    spatial = 4 if len(ranks) and ranks[0] > 1 else 1
    width = g.width()
    wide = g.gemm(g.flatten(x) if len(shape) > 1 else x, width * spatial) if total else x
    rank = ranks[0]
    dims = {1: [width * spatial], 2: [width, 4], 3: [width, 2, 2], 4: [width, 2, 2, 1]}[rank]
    return g.reshape(wide, dims)
