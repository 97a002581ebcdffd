r"""Integral neural networks (INN): channels as samples of a smooth function, taken again at fewer points.

The channels of a group are put in an order in which rows of producers change little from one to the next (2-opt). Then
they are values of a function at the middles of n equal parts of [0, 1]; a sum over them is n times its integral. P
interpolates it at the middles of k parts, Q = n / k P^T does so with consumers. Interpolation is linear: cubic
convolution, as published, can make variances negative.

Reference: Solodskikh et al., "Integral Neural Networks", CVPR 2023.
"""

from collections.abc import Sequence

import numpy as np

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.gram import role_gram
from onnxfold.cluster.partition import ChannelPartition, Labels, check_clusters
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView


def smooth_paths(view: GraphView, group: FoldGroup) -> list[Labels]:
    """Return the channels of every block in a smooth order."""
    gram = role_gram(view, group, Role.PRODUCER)
    return [units[smooth_path(gram[np.ix_(units, units)])] for units in group.units_by_block]


def resample(paths: Sequence[Labels], k: int) -> ChannelPartition:
    """Interpolate the channels of every path at fewer points, k in all."""
    n, width = sum(map(len, paths)), k // len(paths)
    check_clusters(k, n, len(paths))
    encode, labels, places = np.zeros((k, n)), np.zeros(n, np.int64), np.zeros(k, np.int64)
    for block, path in enumerate(paths):
        rows = slice(block * width, (block + 1) * width)
        at = (np.arange(width) + 0.5) * (len(path) / width) - 0.5
        nearest = path[np.floor(at + 0.5).astype(int)]
        order = np.argsort(nearest)  # clusters are in the order of their channels
        away = np.abs(at[order, None] - np.arange(len(path)))
        encode[rows, path], places[rows] = np.maximum(1 - away, 0), nearest[order]
        labels[path] = rows.start + away.argmin(axis=0)
    return ChannelPartition(labels, places, (encode, encode.T * (n / k)))


def smooth_path(gram: Matrix) -> Labels:
    """Return an order of n vectors with these inner products that no exchange of two edges makes shorter."""
    n, squares = len(gram), gram.diagonal()
    lengths = np.zeros((n + 1, n + 1))  # the last stands in front of the path, and is as near to each
    lengths[:n, :n] = np.sqrt(np.maximum(squares[:, None] + squares - 2 * gram, 0.0))
    path, closer, least = np.roll(np.arange(n + 1), 1), True, 1e-9 * lengths.max()
    while closer:
        closer = False
        for i in range(n - 1):
            a, b, ends = path[i], path[i + 1], path[i + 2 :]
            then = np.append(lengths[b, ends[1:]] - lengths[ends[:-1], ends[1:]], 0.0)
            gains = lengths[a, ends] + then - lengths[a, b]
            j = int(gains.argmin())
            if gains[j] < -least:
                path[i + 1 : i + 3 + j] = path[i + 1 : i + 3 + j][::-1]
                closer = True
    return path[1:]
