"""Dead leaves: random images with the edges and the scale invariance of natural ones.

An image is covered, front to back, by overlapping discs and boxes of random colour whose radii follow a power law, as
in "Learning to See by Looking at Noise", arXiv 2106.05963. Fewer and larger shapes work better for
folding than many small ones.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.float32]

#: Painting takes longer than running a small network: so many small batches, of so many numbers, are remembered for the
#: folds of a search or a demo, and for comparisons, which look at the same images.
_REMEMBERED, _SMALL = 16, 1 << 18

_SHAPES = 20
_EXPONENT = 3.0
#: Smallest and largest radius as a fraction of the shorter side.
_RADII = (0.04, 0.6)
_NOISE = 0.02


def dead_leaves(samples: int, channels: int, height: int, width: int, *, seed: int) -> Images:
    """Return images of shape (samples, channels, height, width), zero mean and unit variance per channel.

    Parameters
    ----------
    samples, channels, height, width : int
        Shape of the result.
    seed : int
        Seed.
    """
    if samples * channels * height * width <= _SMALL:
        return _remembered(samples, channels, height, width, seed).copy()
    return _paint(samples, channels, height, width, seed)


def _paint(samples: int, channels: int, height: int, width: int, seed: int) -> Images:
    random = np.random.default_rng(seed)
    images = np.empty((samples, channels, height, width), np.float32)
    if not images.size:  # what has no pixels has no mean, and numpy would warn of it
        return images
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    side = min(height, width)
    low, high = (max(r * side, 0.5) for r in _RADII)
    for image in images:
        image[:] = _colour(random, channels)[:, None, None]
        for _ in range(_SHAPES):
            # Inverse transform sampling of a density proportional to r^-exponent.
            u, power = random.random(), 1.0 - _EXPONENT
            radius = (low**power + u * (high**power - low**power)) ** (1.0 / power) * 1.5
            cy, cx = random.uniform(0, height), random.uniform(0, width)
            if random.random() < 0.5:
                mask = (y - cy) ** 2 + (x - cx) ** 2 <= radius**2
            else:
                stretch = random.uniform(0.5, 2.0)
                mask = (np.abs(y - cy) <= radius * stretch) & (np.abs(x - cx) <= radius / stretch)
            image[:, mask] = _colour(random, channels)[:, None]
    images += _NOISE * random.standard_normal(images.shape, np.float32)
    mean = images.mean(axis=(0, 2, 3), keepdims=True)
    deviation = images.std(axis=(0, 2, 3), keepdims=True)
    images -= mean
    images /= np.maximum(deviation, 1e-6)
    return images


_remembered = lru_cache(_REMEMBERED)(_paint)


def _colour(random: np.random.Generator, channels: int) -> npt.NDArray[np.float32]:
    """Return a colour; its channels share most of their brightness, as those of photographs do."""
    grey = random.random()
    colour: npt.NDArray[np.float32] = (0.7 * grey + 0.3 * random.random(channels)).astype(np.float32)
    return colour
