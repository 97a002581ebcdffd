"""Accumulated second moments of activations, guarded against cancellation.

docs/mathematics.md has the derivation, and the sources.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onnxfold.graph.tensors import Array, Matrix, working_type
from onnxfold.statistics.samples import CHUNK, Samples, row_parts
from onnxfold.statistics.samples import parts as parts_of

#: Numbers of images that are added up at a time: they stay near the processor.
_PART = 1 << 17


class SecondMoments:
    """Means of two vectors x and y, and their centred products, put together batch by batch.

    Products are of shape (n,), position by position, or (n, k), of all positions with all.
    """

    def __init__(self, *shape: int) -> None:
        self.count = 0
        self.mean_x: Matrix = np.zeros(shape[0])
        self.mean_y: Matrix = np.zeros(shape[-1])
        self._pair: Callable[[Matrix, Matrix], Matrix] = np.multiply if len(shape) == 1 else np.multiply.outer
        self._products: Matrix = np.zeros(shape)

    def put(self, count: int, x: "Centre", y: "Centre", products: Array) -> None:
        """Add a batch of so many samples: the centres of x and y, and the sums of the products of what they left."""
        # Of wide layers, one matrix more is one too many: what is computed goes where the last one was.
        batch = self._pair(x.rest, y.rest)
        batch *= count
        np.subtract(products, batch, out=batch)
        total = self.count + count
        off_x, off_y = x.mean - self.mean_x, y.mean - self.mean_y
        if self.count:
            apart = self._pair(off_x, off_y)
            apart *= self.count * count / total
            batch += apart
            self._products += batch
        else:
            self._products = batch
        self.mean_x += off_x * (count / total)
        self.mean_y += off_y * (count / total)
        self.count = total

    def join(self, other: "SecondMoments") -> None:
        """Add the samples of another one, which is left as it is."""
        total = self.count + other.count
        share = other.count / max(total, 1)
        off_x, off_y = other.mean_x - self.mean_x, other.mean_y - self.mean_y
        self._products += other._products
        if self.count and other.count:
            apart = self._pair(off_x, off_y)
            apart *= share * self.count
            self._products += apart
        self.mean_x, self.mean_y, self.count = self.mean_x + share * off_x, self.mean_y + share * off_y, total

    @property
    def covariance(self) -> Matrix:
        """The mean of the centred products; zeros where there were no samples."""
        return self.rows_of_covariance(slice(None))

    def rows_of_covariance(self, rows: slice) -> Matrix:
        """Return some rows of it."""
        return self._products[rows] / max(self.count, 1)

    def covariance_in_place(self) -> Matrix:
        """Return the covariance in the memory of the products: nothing can be added any more."""
        self._products /= max(self.count, 1)
        return self._products


class Centre(NamedTuple):
    """The mean of some values, rounded to their type, and the mean of the values without it."""

    shift: Matrix
    rest: Matrix

    @property
    def mean(self) -> Matrix:
        """Mean of the values."""
        return self.shift + self.rest


def remove_mean(values: Array, axes: int | tuple[int, ...] = 0, *, out: Array | None = None) -> tuple[Array, Centre]:
    """Return values without their mean over some axes, in `out` where it is given, and that mean."""
    shift = _mean(values, axes).astype(values.dtype)
    rest = np.subtract(values, np.expand_dims(shift, axes), out=out)
    # What rounding left of the mean is measured: zero for what is constant.
    return rest, Centre(shift.astype(np.float64), _mean(rest, axes))


def _mean(values: Array, axes: int | tuple[int, ...]) -> Matrix:
    if axes == 0 and values.ndim == 2:  # the same, in a third of the time where rows are short
        return np.asarray(np.einsum("ij->j", values, dtype=np.float64)) / len(values)
    return np.asarray(values.mean(axis=axes, dtype=np.float64))


class ChannelMoments:
    """Mean and variance per position of an axis, over batches of activations."""

    def __init__(self, batches: Sequence[Array], axis: int) -> None:
        width = batches[0].shape[axis]
        moments = SecondMoments(width)
        for values in batches:
            if values.size:
                are_images = values.ndim > 2 and axis % values.ndim == 1
                sums = _sums_of_images if are_images else _sums
                centre, squares = sums(np.asarray(values, working_type(values)), axis % values.ndim)
                moments.put(values.size // width, centre, centre, squares)
        self.mean: Matrix = moments.mean_x
        self.variance: Matrix = np.maximum(moments.covariance, 0.0)


def _sums(values: Array, axis: int) -> tuple[Centre, Matrix]:
    """Return the mean over all axes but one, and the sums of the squares without it."""
    others = tuple(i for i in range(values.ndim) if i != axis)
    rest, centre = remove_mean(values, others)
    return centre, np.square(rest, out=rest).sum(axis=others, dtype=np.float64)


def _sums_of_images(values: Array, axis: int) -> tuple[Centre, Matrix]:
    """Return the same of axis 1 of images: over positions in their type, pairwise, as they lie, then in float64."""
    images = values.reshape(*values.shape[: axis + 1], -1)
    count = images.size // images.shape[1]
    parts = [images[part] for part in parts_of(len(images), max(_PART * len(images) // images.size, 1))]

    def total(part: Array) -> Matrix:
        return part.sum(axis=2).sum(axis=0, dtype=np.float64)  # type: ignore[no-any-return]

    shift = (np.sum([total(part) for part in parts], axis=0) / count).astype(values.dtype)
    first, second = np.zeros(len(shift)), np.zeros(len(shift))
    for part in parts:
        rest = part - shift[:, None]
        first += total(rest)
        second += total(np.square(rest, out=rest))
    return Centre(shift.astype(np.float64), first / count), second


class ChannelCorrelations:
    """Correlation, channel by channel, of activations that lie beside each other, put together batch by batch."""

    def __init__(self, n: int) -> None:
        self._xy, self._xx, self._yy = (SecondMoments(n) for _ in range(3))

    def add(self, x: Array, y: Array) -> None:
        """Add a batch, both of shape (..., n)."""
        if not x.size:
            return
        flat = (np.asarray(values, working_type(values)).reshape(-1, values.shape[-1]) for values in (x, y))
        of_x, of_y = map(remove_mean, flat)
        for moments, (a, left), (b, right) in ((self._xy, of_x, of_y), (self._xx, of_x, of_x), (self._yy, of_y, of_y)):
            moments.put(len(a), left, right, (a * b).sum(axis=0, dtype=np.float64))

    @property
    def correlations(self) -> Matrix:
        """Shape (n,), within [-1, 1]; 1 where one of both is constant."""
        scale = np.sqrt(np.maximum(self._xx.covariance, 0.0) * np.maximum(self._yy.covariance, 0.0))
        values: Matrix = np.divide(self._xy.covariance, scale, out=np.ones_like(scale), where=scale > 0.0)
        return np.clip(values, -1.0, 1.0)

    @property
    def slopes(self) -> Matrix:
        """Slopes of the regression of y on x, of shape (n,); 1 where x is constant."""
        variance = self._xx.covariance
        values: Matrix = np.divide(self._xy.covariance, variance, out=np.ones_like(variance), where=variance > 0.0)
        return values


class SplitMoments:
    """Second moments of vectors of length n, over two halves of the samples.

    Neighbours of a batch are in one half as far as possible: positions of one image depend on each other.
    """

    def __init__(self, batches: Iterable[Samples], n: int) -> None:
        self._halves = tuple(SecondMoments(n, n) for _ in range(2))
        self._waiting: tuple[list[Samples], list[Samples]] = ([], [])
        for samples in batches:
            self._take(samples)
        for half in range(2):
            self._add(half)

    def _take(self, samples: Samples) -> None:
        """Add a batch of shape (S, n); of small ones several are multiplied together."""
        counts = [
            half.count + sum(map(len, waiting)) for half, waiting in zip(self._halves, self._waiting, strict=True)
        ]
        fewer = 0 if counts[0] <= counts[1] else 1
        middle = -(-len(samples) // 2)
        for half, part in ((fewer, samples[:middle]), (1 - fewer, samples[middle:])):
            for begin in range(0, len(part), CHUNK):
                chunk = part[begin : begin + CHUNK]
                if sum(map(len, self._waiting[half])) + len(chunk) > CHUNK:
                    self._add(half)
                self._waiting[half].append(chunk.copy())  # the batch itself may go

    def _add(self, half: int) -> None:
        waiting = self._waiting[half]
        if waiting:
            rest, centre = remove_mean(waiting[0] if len(waiting) == 1 else np.concatenate(waiting))
            waiting.clear()
            self._halves[half].put(len(rest), centre, centre, rest.T @ rest)

    def noise(self) -> float:
        """Return the variance of the covariance of all samples, summed over pairs of channels.

        Infinite if a half is empty.
        """
        a, b = self._halves
        if not min(a.count, b.count):
            return np.inf
        total = 0.0
        for rows in row_parts(len(a.mean_x)):
            apart = a.rows_of_covariance(rows)
            apart -= b.rows_of_covariance(rows)
            np.square(apart, out=apart)
            total += float(apart.sum()) - float(apart[:, rows].trace())
        return total / 4.0

    def join(self) -> SecondMoments:
        """Return the moments of all samples, in the memory of a half: these ones are used up."""
        whole, rest = self._halves
        self._halves = (SecondMoments(0, 0),) * 2
        whole.join(rest)
        return whole


class CrossMoments(SecondMoments):
    """Covariances of samples (x, y): `covariance` is that of x and y, shape (n, k)."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__(n, k)
        self._yy = SecondMoments(k, k)

    def add(self, x: Samples, y: Samples) -> None:
        """Add samples of shape (S, n) and (S, k)."""
        for start in range(0, len(x), CHUNK):
            a, of_x = remove_mean(x[start : start + CHUNK])
            b, of_y = remove_mean(y[start : start + CHUNK])
            self.put(len(a), of_x, of_y, a.T @ b)
            self._yy.put(len(b), of_y, of_y, b.T @ b)

    @property
    def gram(self) -> Matrix:
        """Covariance of y, shape (k, k)."""
        return self._yy.covariance


Classes = npt.NDArray[np.integer]

#: Below this intensity samples are ample unless they are fewer than channels: what they say stays as it is.
_AMPLE = 0.3
#: The most that is taken from a covariance: even a single sample tells its scale.
_MOST = 0.95


@dataclass(frozen=True)
class Doubt:
    """How far inputs may differ from data."""

    part: float = 0.0  # the part of covariances that more inputs of their kind would not make sure, in [0, 1)
    of_variances: bool = False  # whether the channels' variances may be others, too


#: Of data.
NO_DOUBT = Doubt()


def intensity(noise: float, samples: int, covariance: Matrix, doubt: float = 0.0) -> float:
    """Return the intensity of the shrinkage."""
    signal = float(np.vdot(covariance, covariance)) - float(np.square(np.diag(covariance)).sum())
    optimum = min(noise / signal, 1.0) if signal > 0.0 else 0.0
    if optimum < _AMPLE and samples >= len(covariance):
        optimum = 0.0
    return min(1.0 - (1.0 - optimum) * (1.0 - doubt), _MOST) if np.isfinite(signal) else 0.0


def shrink_covariance(
    covariance: Matrix, shrinkage: float, duplicates: Classes | None = None, *, level: bool = False
) -> Matrix:
    """Return the covariance, shrunk towards one in which only exact duplicates go together."""
    n = len(covariance)
    own = np.arange(n) if duplicates is None else duplicates
    seen = np.maximum(np.diag(covariance), 0.0)
    variances = np.full(n, seen.mean()) if level and n else seen
    estimate: Matrix = (1.0 - shrinkage) * covariance
    order = np.argsort(own, kind="stable")
    for alike in np.split(order, np.flatnonzero(np.diff(own[order])) + 1):
        estimate[np.ix_(alike, alike)] += shrinkage * np.sqrt(np.outer(variances[alike], variances[alike]))
    return estimate
