"""Dead leaves: random images with the edges and the scale invariance of natural ones.

An image is covered, front to back, by overlapping discs and boxes of random colour whose radii follow a power law, as
in "Learning to See by Looking at Noise", arXiv 2106.05963. Fewer and larger shapes work better for
folding than many small ones. Occlusion and a power law of sizes give the spectrum of natural images, whose power falls
like 1/f^2 ("Occlusion models for natural images", Lee, Mumford and Huang, 2001), if a pixel is the mean over its area,
as it is in a camera: edges are ramps about a pixel wide. Large images have a texture in place of the shapes
that are too small to be painted.
"""

from dataclasses import dataclass
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
    leaves = _Leaves.draw(random, samples, channels, height, width)
    together = max(_TOGETHER // (height * width), 1)
    for start in range(0, samples, together):
        part = slice(start, start + together)
        images[part] = leaves.paint(random, part, height, width)
    images += _NOISE * random.standard_normal(images.shape, np.float32)
    mean = images.mean(axis=(0, 2, 3), keepdims=True)
    deviation = images.std(axis=(0, 2, 3), keepdims=True)
    images -= mean
    images /= np.maximum(deviation, 1e-6)
    return images


_remembered = lru_cache(_REMEMBERED)(_paint)


@dataclass(frozen=True)
class _Leaves:
    """Colours, places and sizes of the shapes in every image; lengths are in pixels."""

    colours: Images  # of the background and of the shapes; the last number is the deviation of their texture
    radii: Images  # sizes, centres, and by how much boxes are higher, and narrower, than they are large
    rows: Images
    columns: Images
    stretches: Images
    round_: npt.NDArray[np.bool_]  # whether a shape is a disc
    blur: Images
    smallest: float

    @classmethod
    def draw(cls, random: np.random.Generator, samples: int, channels: int, height: int, width: int) -> "_Leaves":
        """Return random leaves."""
        low, high = (max(r * min(height, width), 0.5) for r in _RADII)
        power = 1.0 - _EXPONENT
        shape = (samples, _SHAPES)
        # Inverse transform sampling of a density proportional to r^-exponent.
        radii = (low**power + random.random(shape) * (high**power - low**power)) ** (1.0 / power) * 1.5
        # The channels of a colour share most of their brightness, as those of photographs do.
        grey = random.random((samples, 1 + _SHAPES, 1))
        colours = 0.7 * grey + 0.3 * random.random((samples, 1 + _SHAPES, channels))
        octaves = max(np.log2(low / _FINE), 0.0)
        rough = np.zeros_like(grey) if not octaves else _TEXTURE * np.sqrt(octaves) * random.random(grey.shape)
        return cls(
            np.concatenate([colours, rough], axis=2, dtype=np.float32), radii.astype(np.float32),
            random.uniform(0.0, height, shape).astype(np.float32),
            random.uniform(0.0, width, shape).astype(np.float32), random.uniform(0.5, 2.0, shape).astype(np.float32),
            random.random(shape) < 0.5, random.uniform(*_BLUR, samples).astype(np.float32), low,
        )  # fmt: skip

    def paint(self, random: np.random.Generator, part: slice, height: int, width: int) -> Images:
        """Return some of the samples, painted from back to front."""
        smooth = not self.colours[:, :, -1].any()
        colours = self.colours[part, :, :-1] if smooth else self.colours[part]
        y, x = np.ogrid[0:height, 0:width]
        y, x = y.astype(np.float32), x.astype(np.float32)
        images = np.broadcast_to(colours[:, 0, :, None, None], (*colours[:, 0].shape, height, width)).copy()
        blur = np.maximum(self.blur[part, None, None], 1e-3)
        for i in range(_SHAPES):
            radius, row, column, stretch = (
                v[part, i, None, None] for v in (self.radii, self.rows, self.columns, self.stretches)
            )
            dy, dx = y - row, x - column
            # Positive inside: the distance to the edge, of a disc and of a box.
            of_disc = radius - np.sqrt(dy * dy + dx * dx)
            of_box = np.minimum(radius * stretch - np.abs(dy), radius / stretch - np.abs(dx))
            inside = np.where(self.round_[part, i, None, None], of_disc, of_box)
            inside /= blur
            inside += 0.5
            share = np.clip(inside, 0.0, 1.0, out=inside)[:, None]
            images += share * (colours[:, 1 + i, :, None, None] - images)
        if smooth:
            return images
        return images[:, :-1] + images[:, -1:] * _texture(random, (len(images), 1, height, width), self.smallest)


def _texture(random: np.random.Generator, shape: tuple[int, ...], radius: float) -> Images:
    """Return 1/f noise of wavelengths below four radii, of unit deviation."""
    spectrum = np.fft.rfft2(random.standard_normal(shape, np.float32))
    frequency = np.hypot(np.fft.fftfreq(shape[2])[:, None], np.fft.rfftfreq(shape[3]))
    coarse = frequency < 1.0 / (4.0 * radius)
    spectrum *= np.where(coarse, 0.0, 1.0 / np.where(coarse, 1.0, frequency))
    noise = np.fft.irfft2(spectrum, shape[2:])
    result: Images = (noise / np.maximum(noise.std(axis=(2, 3), keepdims=True), 1e-6)).astype(np.float32)
    return result
