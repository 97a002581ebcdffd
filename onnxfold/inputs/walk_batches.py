"""Batches of inputs for walks along the nodes of a network: as many samples at a time as activations leave room for.

In front of the first strides an activation has many positions, and a fit looks at a bounded number of them: fewer
samples show as many. Behind them there is room for larger batches, which take less time per sample. So a walk begins
with a part of many samples, in small batches, and goes on with more of them in larger ones. What all others are in
front of a stage, onnxruntime computes in one run of the network up to there, which is far faster than node by node.
"""

import sys
from collections import deque
from itertools import accumulate
from math import prod

import numpy as np
from onnx import NodeProto

from onnxfold.budget.costs.weights import FREE_DIMENSION
from onnxfold.channels.layers import linear
from onnxfold.graph.nodes import node_key, read_names
from onnxfold.graph.run.session import count_samples, in_batches, sample_count
from onnxfold.graph.view import GraphView
from onnxfold.statistics.activations import Batches, Stage, StagedBatches

#: Memory for the activations of a batch.
BATCH_BYTES = 48 << 20
#: Samples of a batch where the network takes any number.
BATCH = 64
#: Samples that a walk begins with, at least, and positions of a layer that are enough.
_FEWEST, _ENOUGH = 64, 50_000
#: Positions that every layer is shown where a network is too large for more.
_LEAST = 25_000
#: A stage begins where batches may be so many times as large, or so many times as many samples are walked with.
_LARGER, _MORE = 4, 2
_GOLDEN = 0.5 * (5**0.5 - 1)


def affordable_samples(view: GraphView, most_bytes: int, fewest: int = 1, most: int = sys.maxsize) -> int:
    """Return how many samples' activations fit into memory; about three large tensors are alive at a time."""
    sizes = [_numbers(view, name) for node in view.nodes for name in node.output]
    return min(max(_fitting(max(sizes, default=1), most_bytes), fewest), most)


def enough_samples(view: GraphView) -> int:
    """Return how many samples show every linear operator the least positions; very many where one sees few of each."""
    read = [count for node in view.nodes if (count := _positions_read(view, node)) is not None]
    return -(-_LEAST // max(min(read, default=0), 1))


def cut_batches(view: GraphView, batches: Batches) -> Batches:
    """Return batches, cut where a run of the network would hold large activations."""
    most = affordable_samples(view, BATCH_BYTES)
    return [part for batch in batches for part in in_batches(batch, most)]


def takes_more_behind_strides(view: GraphView, samples: int) -> bool:
    """Whether a walk takes most of so many samples behind the first strides only."""
    return _are_large(view, BATCH) and _samples_by_node(view, samples)[0] < samples


def stage_batches(view: GraphView, batches: Batches, *, is_fixed: bool = False) -> Batches | StagedBatches:
    """Return batches with the stages in which a walk takes them; cut only, where one is enough.

    Those of a fixed size are not cut. Batches that need not be stay as they are: few small images in the first layers
    cost a LeNet-5 0.6 points.
    """
    largest = max(map(sample_count, batches))
    cut = batches if is_fixed else cut_batches(view, batches)
    if not _are_large(view, BATCH if is_fixed else largest) or not all(v.ndim for v in cut[0].values()):
        return cut
    total = count_samples(cut)
    wanted = _samples_by_node(view, total)
    fitting = [largest if is_fixed else _fitting(most, BATCH_BYTES) for most in _largest_behind(view)]
    sizes = [max(min(size, largest), 1) for size in fitting]
    # Any first part of this order is spread over all of them: a user's samples may be sorted.
    order = np.argsort(np.arange(len(cut)) * _GOLDEN % 1.0, kind="stable") if wanted[0] < total else range(len(cut))
    waiting = deque(cut[i] for i in order)

    def take(samples: int) -> Batches:
        part: Batches = []
        while waiting and count_samples(part) < samples:
            part.append(waiting.popleft())
        return part

    first = take(wanted[0])
    seen, size, stages = count_samples(first), sizes[0], list[Stage]()
    for place, node in enumerate(view.nodes):
        has_more = bool(waiting) and wanted[place] >= min(_MORE * seen, total)
        if has_more or sizes[place] >= _LARGER * size:
            joining = take(wanted[place] - seen) if has_more else []
            seen, size = seen + count_samples(joining), sizes[place]
            stages.append(Stage(node_key(node), size, joining))
    return StagedBatches(first, tuple(stages)) if stages else cut


def _are_large(view: GraphView, samples: int) -> bool:
    """Whether the activations of so many samples are large."""
    return affordable_samples(view, BATCH_BYTES) < samples


def _samples_by_node(view: GraphView, total: int) -> list[int]:
    """Return how many samples a walk needs at every node; all, unless few can begin and the last layer sees most."""
    read = [_positions_read(view, node) for node in view.nodes]
    positions = [0 if count is None else count or _ENOUGH for count in read]
    behind = [*accumulate(reversed(positions), max)][::-1]
    wanted = [min(total, max(_FEWEST, _ENOUGH // max(most, 1))) for most in behind]
    last = max((place for place, count in enumerate(positions) if count), default=0)
    return wanted if _MORE * wanted[last] >= total >= _MORE * wanted[0] else [total] * len(wanted)


def _positions_read(view: GraphView, node: NodeProto) -> int | None:
    """Return the positions of a sample that a linear operator reads; None of another, 0 where they are not known."""
    operator = linear(view, node)
    if operator is None or not operator.weight:  # products of two activations have nothing to fit
        return None
    if operator.channel_axis != 1 or len(view.shape(operator.weight) or ()) < 3:  # rows of a matrix count as one
        return 1
    shape = view.shape(node.input[0])
    return 0 if shape is None else prod(size or FREE_DIMENSION for size in shape[2:])


def _largest_behind(view: GraphView) -> list[int]:
    """Return the numbers of the largest activation that any node from every one on reads or writes."""
    largest = [max((_numbers(view, n) for n in (*read_names(node), *node.output)), default=1) for node in view.nodes]
    return [*accumulate(reversed(largest), max)][::-1]


def _numbers(view: GraphView, name: str) -> int:
    """Return the numbers of a sample of an activation; a weight has none."""
    return 1 if view.is_weight(name) else prod(d or FREE_DIMENSION for d in (view.shape(name) or ())[1:])


def _fitting(numbers: int, most_bytes: int) -> int:
    return most_bytes // (3 * 4 * numbers)
