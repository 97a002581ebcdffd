"""Dead leaves: random images with the edges and the scale invariance of natural ones.

An image is covered, front to back, by overlapping discs and boxes of random colour whose radii follow a power law, as
in "Learning to See by Looking at Noise", arXiv 2106.05963. Fewer and larger shapes work better for
folding than many small ones. Occlusion and a power law of sizes give the spectrum of natural images, whose power falls
like 1/f^2 ("Occlusion models for natural images", Lee, Mumford and Huang, 2001), if a pixel is the mean over its area,
as it is in a camera: edges are ramps about a pixel wide. Large images have a texture in place of the shapes
that are too small to be painted.
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
#: Narrowest and widest edge in pixels, by image: cameras and scaling spread an edge over about a pixel, and depth of
#: field over more; hard steps have more energy at high frequencies than images have.
_BLUR = (0.0, 1.5)
#: Deviation of the texture per octave between the smallest shapes and pixels, and the radius in pixels below which
#: shapes need none. Shapes as small as pixels would be as natural, but far too many.
_TEXTURE, _FINE = 0.1, 2.0
#: So many pixels are painted at a time: they stay in the cache.
_TOGETHER = 1 << 15


def dead_leaves(samples: int, channels: int, height: int, width: int, *, seed: int) -> Images:
    """Return images of shape (samples, channels, height, width), zero mean and unit variance per channel."""
    if samples * channels * height * width <= _SMALL:
        return _remembered(samples, channels, height, width, seed).copy()
    return _paint(samples, channels, height, width, seed)


def _paint(samples: int, channels: int, height: int, width: int, seed: int) -> Images:
    random = np.random.default_rng(seed)
    images = np.empty((samples, channels, height, width), np.float32)
    if not images.size:  # what has no pixels has no mean, and numpy would warn of it
        return images
    low, high = (max(r * min(height, width), 0.5) for r in _RADII)
    power = 1.0 - _EXPONENT
    shape = (samples, _SHAPES)
    # Inverse transform sampling of a density proportional to r^-exponent.
    radii = (low**power + random.random(shape) * (high**power - low**power)) ** (1.0 / power) * 1.5
    # Of the background and of the shapes. The channels share most of their brightness, as those of photographs do.
    grey = random.random((samples, 1 + _SHAPES, 1))
    colours = 0.7 * grey + 0.3 * random.random((samples, 1 + _SHAPES, channels))
    octaves = max(np.log2(low / _FINE), 0.0)
    if octaves:  # the deviation of the texture is one more channel
        rough = _TEXTURE * np.sqrt(octaves) * random.random(grey.shape)
        colours = np.concatenate([colours, rough], axis=2)
    colours = colours.astype(np.float32)
    # Sizes, centres, and by how much boxes are higher, and narrower, than they are large; in pixels.
    ranges = (0.0, height), (0.0, width), (0.5, 2.0)
    leaves = np.stack([radii, *(random.uniform(least, most, shape) for least, most in ranges)])
    leaves, are_discs = leaves.astype(np.float32), random.random(shape) < 0.5
    blur = np.maximum(random.uniform(*_BLUR, samples).astype(np.float32), 1e-3)
    together = max(_TOGETHER // (height * width), 1)
    for start in range(0, samples, together):
        part = slice(start, start + together)
        painted = np.repeat(np.repeat(colours[part, 0, :, None, None], height, 2), width, 3)
        for i in range(_SHAPES):  # from back to front
            share = _share(leaves[:, part, i], are_discs[part, i], blur[part], height, width)
            painted += share[:, None] * (colours[part, 1 + i, :, None, None] - painted)
        if octaves:
            painted = painted[:, :-1] + painted[:, -1:] * _texture(random, (len(painted), 1, height, width), low)
        images[part] = painted
    images += _NOISE * random.standard_normal(images.shape, np.float32)
    mean = images.mean(axis=(0, 2, 3), keepdims=True)
    deviation = images.std(axis=(0, 2, 3), keepdims=True)
    images -= mean
    images /= np.maximum(deviation, 1e-6)
    return images


_remembered = lru_cache(_REMEMBERED)(_paint)


def _share(leaf: Images, is_disc: npt.NDArray[np.bool_], blur: Images, height: int, width: int) -> Images:
    """Return the share of every pixel that a shape of every sample covers, shape (samples, height, width)."""
    y, x = (axis.astype(np.float32) for axis in np.ogrid[0:height, 0:width])
    radius, row, column, stretch = leaf[..., None, None]
    dy, dx = y - row, x - column
    # Positive inside: the distance to the edge, of a disc and of a box.
    of_disc = radius - np.sqrt(dy * dy + dx * dx)
    of_box = np.minimum(radius * stretch - np.abs(dy), radius / stretch - np.abs(dx))
    inside = np.where(is_disc[:, None, None], of_disc, of_box)
    inside /= blur[:, None, None]
    inside += 0.5
    share: Images = np.clip(inside, 0.0, 1.0, out=inside)
    return share


def _texture(random: np.random.Generator, shape: tuple[int, ...], radius: float) -> Images:
    """Return 1/f noise of wavelengths below four radii, of unit deviation."""
    spectrum = np.fft.rfft2(random.standard_normal(shape, np.float32))
    frequency = np.hypot(np.fft.fftfreq(shape[2])[:, None], np.fft.rfftfreq(shape[3]))
    coarse = frequency < 1.0 / (4.0 * radius)
    spectrum *= np.where(coarse, 0.0, 1.0 / np.where(coarse, 1.0, frequency))
    noise = np.fft.irfft2(spectrum, shape[2:])
    result: Images = (noise / np.maximum(noise.std(axis=(2, 3), keepdims=True), 1e-6)).astype(np.float32)
    return result
