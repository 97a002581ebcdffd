"""Procedural inputs that resemble data, made without data and gradients, and noise of the right type and shape.

Dead leaves have the edges and the scale invariance of natural images: an image is covered, front to back, by
overlapping discs and boxes of random colour whose radii follow a power law, as in "Learning to See by Looking at
Noise", arXiv 2106.05963. Fewer and larger shapes work better for folding than many small ones. Occlusion and a power
law of sizes give the spectrum of natural images, whose power falls like 1/f^2 ("Occlusion models for natural images",
Lee, Mumford and Huang, 2001), if a pixel is the mean over its area, as it is in a camera: edges are ramps about a pixel
wide. Large images have a texture in place of the shapes that are too small to be painted, and every shape one of a few
grains, as surfaces do. What is common to all pixels of an image varies most in photographs: exposure, colour of light.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from onnxfold.budget.costs.running import forward_cost
from onnxfold.budget.costs.weights import FREE_DIMENSION
from onnxfold.graph.run.session import InputInfo, batch_of
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_inputs import input_infos
from onnxfold.inputs.images.image_form import image_form
from onnxfold.inputs.images.input_scale import has_channels_last, input_scale
from onnxfold.inputs.sample_kinds import EXPOSED, LEAVES, NOISE, UNIFORM
from onnxfold.inputs.tokens.embedding import look_up
from onnxfold.inputs.tokens.interface import Others, token_interface, whole_feeds
from onnxfold.inputs.walk_batches import BATCH, affordable_samples
from onnxfold.machine import memory
from onnxfold.statistics.activations import Batches

Images = npt.NDArray[np.float32]

#: Painting takes longer than running a small network: so many small batches, of so many numbers, are remembered for the
#: folds of a search or a demo, and for comparisons, which look at the same images.
_REMEMBERED, _SMALL = 16, 1 << 18

#: Names of inputs that hold the length of every sample: noise would be a mask that leaves nothing.
_LENGTHS = re.compile(r"length|len(s|_|\b)|widths", re.IGNORECASE)
#: Names of inputs beside an image that hold its height and width, or the factors that it was resized by.
_SIDES, _FACTORS = re.compile(r"shape|size", re.IGNORECASE), re.compile(r"scale|ratio|factor", re.IGNORECASE)

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
#: Grains of an image, the bounds of their frequencies per pixel, and the deviation of their colours.
_GRAINS, _FREQUENCIES, _TINT = 8, (1 / 32, 1 / 4), 0.3
#: What a fit is shown has an exposure of its own, by image: deviations of the logarithm of its contrast, of brightness,
#: and of a channel's. Ranges of integers would become too wide by it.
_CONTRAST, _BRIGHTNESS, _CAST = 0.5, 0.5, 0.2
_TINY = 1e-6
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
    if octaves:  # the deviations of the texture and of grains, of which a shape has one, are more channels
        rough = _TEXTURE * np.sqrt(octaves) * random.random((samples, 1 + _SHAPES, 2))
        has = random.integers(_GRAINS, size=grey.shape) == np.arange(_GRAINS)
        colours = np.concatenate([colours, rough[..., :1], rough[..., 1:] * has], axis=2)
        grains = _draw_grains(random, samples)
        tints = 1 - _TINT + _TINT * random.standard_normal((samples, _GRAINS, channels), np.float32)
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
            window = _window(leaves[:, part, i], blur[part], (height, width))
            below = painted[:, :, *window]
            share = _share(leaves[:, part, i], are_discs[part, i], blur[part], window)
            below += share[:, None] * (colours[part, 1 + i, :, None, None] - below)
        images[part] = painted[:, :channels]
        if octaves:
            for some, surfaces in _surfaces(random, (height, width), low, grains[:, part]):
                painted[:, channels:][:, some] *= surfaces
            images[part] += painted[:, channels : channels + 1]
            images[part] += np.einsum("sgyx,sgc->scyx", painted[:, channels + 1 :], tints[part], optimize=True)
    for image in images:
        image += _NOISE * random.standard_normal(image.shape, np.float32)
    return _standardise(images)


def _standardise(images: Images) -> Images:
    """Bring every channel to zero mean and unit deviation, in place."""
    images -= images.mean(axis=(0, 2, 3), keepdims=True)
    images /= np.maximum(images.std(axis=(0, 2, 3), keepdims=True), _TINY)
    return images


def _expose(images: Images, seed: int) -> Images:
    """Change contrast, brightness and colour of every image, in place."""
    random, each = np.random.default_rng([seed, 1]), (len(images), 1, 1, 1)
    images *= np.exp(_CONTRAST * random.standard_normal(each, np.float32))
    images += _BRIGHTNESS * random.standard_normal(each, np.float32)
    images += _CAST * random.standard_normal((*images.shape[:2], 1, 1), np.float32)
    return _standardise(images) if images.size else images


_remembered = lru_cache(_REMEMBERED)(_paint)


def _window(leaf: Images, blur: Images, shape: tuple[int, int]) -> tuple[slice, slice]:
    """Return the rows and the columns outside of which no sample's shape covers anything."""
    radius, *centres, stretch = leaf
    spans = []
    for centre, factor, length in zip(centres, (stretch, 1.0 / stretch), shape, strict=True):
        reach = radius * np.maximum(factor, 1.0) + 0.5 * blur + 1.0
        spans.append(slice(max(int((centre - reach).min()), 0), min(int((centre + reach).max()) + 2, length)))
    return spans[0], spans[1]


def _share(leaf: Images, is_disc: npt.NDArray[np.bool_], blur: Images, window: tuple[slice, slice]) -> Images:
    """Return the share of every pixel of a window that a shape of every sample covers, (samples, rows, columns)."""
    y, x = (axis.astype(np.float32) for axis in np.ogrid[window])
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


def _draw_grains(random: np.random.Generator, samples: int) -> Images:
    """Return the facts about grains, (5, samples, grains): their band, their directions, and whether they are sharp."""
    shape = samples, _GRAINS
    lowest, highest = np.log(_FREQUENCIES)
    centres, widths = random.uniform(lowest, highest, shape), random.uniform(0.3, 1.0, shape)
    spreads = random.choice([0.2, 0.5, 5.0], shape)  # lines, strokes, or the same in all directions
    # Sharp ones are closer to two levels, as weaves and printed patterns are.
    drawn = centres, widths, random.uniform(0.0, np.pi, shape), spreads, random.random(shape) < 0.3
    return np.stack(drawn).astype(np.float32)


def _surfaces(
    random: np.random.Generator, size: tuple[int, int], radius: float, grains: Images
) -> Iterator[tuple[slice, Images]]:
    """Yield textures of unit deviation, (samples, some, height, width): 1/f noise, and grains.

    The wavelengths of the first are below four radii. Those of a single image, which is large, come one by one.
    """
    height, width = size
    rows, columns = np.fft.fftfreq(height).astype(np.float32)[:, None], np.fft.rfftfreq(width).astype(np.float32)
    frequency = np.hypot(rows, columns)
    coarse = frequency < 1.0 / (4.0 * radius)
    centre, breadth, direction, spread, is_sharp = grains[..., None, None]
    samples, step = len(is_sharp), 1 if len(is_sharp) == 1 else 1 + _GRAINS
    for first in range(0, 1 + _GRAINS, step):
        spectrum = random.standard_normal((samples, step, height, 2 * len(columns)), np.float32).view(np.complex64)
        if not first:
            spectrum[:, 0] *= np.where(coarse, 0.0, 1.0 / np.where(coarse, 1.0, frequency))
        own = slice(max(first - 1, 0), first + step - 1)  # the grains among them
        distance = (np.log(frequency + _TINY) - centre[:, own]) / breadth[:, own]
        turn = (np.arctan2(rows, columns) - direction[:, own] + np.pi / 2) % np.pi - np.pi / 2
        spectrum[:, int(not first) :] *= np.exp(-0.5 * (distance**2 + (turn / spread[:, own]) ** 2))
        surfaces: Images = np.fft.irfft2(spectrum, size).astype(np.float32, copy=False)
        surfaces /= np.maximum(surfaces.std(axis=(2, 3), keepdims=True), 1e-12)
        of_grains = surfaces[:, int(not first) :]
        of_grains[...] = np.where(is_sharp[:, own], np.sign(of_grains) * np.sqrt(np.abs(of_grains)), of_grains)
        yield slice(first, first + step), surfaces


#: Forward passes are cheap and their number matters: 128 images are worse by 6 points, 1,536 no better.
SAMPLES = 512
#: Memory for the activations of one network where nobody says how many samples there shall be.
ACTIVATION_BYTES = 400 << 20
_MIN_SAMPLES = 32


def synthetic_inputs(
    view: GraphView, *, samples: int = SAMPLES, seed: int = 0, kind: str = LEAVES, exactly: bool = False
) -> Batches:
    """Return batches of inputs for every input of a model.

    The inputs of a language model are consistent, with any token ids. Of others, images (of rank 4, or brought to it by
    the graph) are dead leaves, signals (rank 3) 1/f noise along the last axis, vectors Gaussian; integer inputs are ids
    below the length of the table that they look up, or the length of every sample. Everything is standardised, images
    behind the normalisation that the graph begins with.
    """
    interface = token_interface(view)
    if interface is not None:
        random, size = np.random.default_rng(seed), interface.fixed_batch or min(BATCH, samples)
        ids_shape = size, interface.length(FREE_DIMENSION)
        return [
            whole_feeds(interface, random.integers(0, interface.vocabulary, ids_shape), others(view, seed + i, kind))
            for i in range(max(samples // size, 1))
        ]
    form = image_form(view)
    if form.shapes:
        return form.inputs(synthetic_inputs(form.view, samples=samples, seed=seed, kind=kind, exactly=exactly))
    fixed = batch_of(view)
    if not exactly:
        samples = affordable_samples(view, ACTIVATION_BYTES, _MIN_SAMPLES, samples)
    size = fixed or min(BATCH, samples)
    total = samples if exactly and fixed is None else max(1, samples // size) * size
    batches: Batches = [{} for _ in range(0, total, size)]
    for i, info in enumerate(input_infos(view)):
        # What is fixed to another length than the batch is no batch: the states of a recurrent network, for instance.
        step = next((d for d in info.shape[:1] if d is not None), size)
        shape = total if step == size else step * len(batches), *(d or FREE_DIMENSION for d in info.shape[1:])
        values = _synthetic(view, info, shape, seed + i, kind) if info.shape else np.zeros((), info.dtype)
        for b, batch in enumerate(batches):
            batch[info.name] = values[b * step : (b + 1) * step] if info.shape else values
    return batches


def noise_inputs(inputs: list[InputInfo], *, samples: int, seed: int, view: GraphView) -> dict[str, Array]:
    """Return standard normal floats, and zeros and ones for integers; of a language model, what fits together.

    Images that the graph normalises by itself are normal behind that.
    """
    random = np.random.default_rng(seed)

    def values(info: InputInfo, shape: tuple[int, ...]) -> Array:
        def draw(kind: str) -> Array:
            return random.standard_normal(shape) if kind == "f" else random.integers(0, 2, shape)

        return _values(view, info, shape, draw)

    interface = token_interface(view)
    if interface is not None:
        interface = interface.with_session_types(inputs)
        size = interface.fixed_batch or samples, interface.length(FREE_DIMENSION)
        return whole_feeds(interface, random.integers(0, interface.vocabulary, size), values)
    feeds: dict[str, Array] = {}
    for info in inputs:
        shape: Sequence[int | None] = view.input_shapes.get(info.name) or info.shape
        sizes = (d if d is not None else FREE_DIMENSION if axis else samples for axis, d in enumerate(shape))
        feeds[info.name] = values(info, tuple(sizes))
    return feeds


def _stated_sizes(view: GraphView, name: str, dtype: np.dtype[np.generic]) -> int | tuple[int, int] | None:
    """Return the size that an input states of every sample, the whole one; None of inputs that state none."""
    if (view.shape(name) or ())[1:] == (2,):  # as PaddleDetection's
        images = [s for n in view.input_names if len(s := view.shape(n) or ()) == 4]
        if len(images) == 1 and _FACTORS.search(name):
            return 1
        if len(images) == 1 and _SIDES.search(name):
            height, width = images[0][2:] if (images[0][-1] or 0) > (images[0][1] or 0) else images[0][1:3]
            return height or FREE_DIMENSION, width or FREE_DIMENSION
    if len(view.shape(name) or ()) != 1 or dtype.kind not in "iu" or not _LENGTHS.search(name):
        return None
    declared = view.declared_shapes
    free = [(n, axis) for n, shape in declared.items() for axis, size in enumerate(shape) if axis and size is None]
    along = free or [(n, len(shape) - 1) for n, shape in declared.items() if len(shape) > 1]
    lengths = {(view.shape(n) or ())[axis] or FREE_DIMENSION for n, axis in along}
    return lengths.pop() if len(lengths) == 1 else None


def sample_cost(view: GraphView) -> float:
    """Return the cost of a run of one sample, at the sizes that free dimensions get; 0 where it is not known."""
    sized = view.copy()
    sized.assume(sample_shapes(view))
    return forward_cost(sized)


def sample_shapes(view: GraphView) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs of a single sample, or of a fixed batch, with usual sizes in place of free ones."""
    infos = input_infos(view)
    return {i.name: (i.shape[0] or 1, *(d or FREE_DIMENSION for d in i.shape[1:])) for i in infos if i.shape}


_WORDS_BY_TYPE = {"i": "random ids", "u": "random ids", "b": "ones"}
_WORDS_BY_RANK = {0: "zeros", 3: "1/f noise", 4: "dead leaves"}


def describe_inputs(view: GraphView) -> str:
    """Return the kinds of inputs that :func:`synthetic_inputs` makes: 'dead leaves', 'Gaussian noise', ..."""
    if token_interface(view) is not None:
        return UNIFORM
    view = image_form(view).view
    infos = [info for info in input_infos(view) if _stated_sizes(view, info.name, info.dtype) is None]
    kinds = ((i.dtype.kind if input_scale(view, i.name) is None else "f", len(i.shape)) for i in infos)
    words = (_WORDS_BY_TYPE.get(kind) or _WORDS_BY_RANK.get(rank, "Gaussian noise") for kind, rank in kinds)
    return " and ".join(dict.fromkeys(words)) or "no inputs"


def others(view: GraphView, seed: int, kind: str = LEAVES) -> Others:
    """Return a function that makes the inputs of a language model which hold no tokens."""
    infos = {info.name: info for info in input_infos(view)}
    return lambda info, shape: _synthetic(view, infos[info.name], shape, seed, kind).astype(info.dtype)


def _synthetic(view: GraphView, info: InputInfo, shape: tuple[int, ...], seed: int, kind: str) -> Array:
    def draw(type_kind: str) -> Array:
        if type_kind in "iu":
            return np.random.default_rng(seed).integers(0, look_up(view, info.name).rows, shape)
        return np.ones(shape) if type_kind == "b" else _standard(shape, seed, kind)

    return _values(view, info, shape, draw)


def _values(view: GraphView, info: InputInfo, shape: tuple[int, ...], draw: Callable[[str], Array]) -> Array:
    """Return values of one input, as they are drawn for the kind of its type; floats are drawn standardised."""
    # Random numbers are drawn in 8 bytes.
    memory.require(memory.array_bytes(shape, 8), f"input '{info.name}' of the shape {list(shape)}")
    scale, stated = input_scale(view, info.name), _stated_sizes(view, info.name, info.dtype)
    if scale is not None:
        return scale.values(draw("f"), info.dtype)
    return (draw(info.dtype.kind) if stated is None else np.full(shape, stated)).astype(info.dtype)


def _standard(shape: tuple[int, ...], seed: int, kind: str) -> Array:
    """Return values of zero mean and unit deviation."""
    random = np.random.default_rng(seed)
    if kind == NOISE or len(shape) not in (3, 4):
        return random.standard_normal(shape)
    if len(shape) == 3:
        return _pink(shape, random)
    is_last = has_channels_last(shape)
    samples, channels, height, width = (shape[i] for i in (0, 3, 1, 2)) if is_last else shape
    images = dead_leaves(samples, channels, height, width, seed=seed)
    images = _expose(images, seed) if kind == EXPOSED else images
    return images.transpose(0, 2, 3, 1) if is_last else images


def _pink(shape: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return 1/f noise along the last axis, standardised."""
    spectrum = np.fft.rfft(random.standard_normal(shape), axis=-1)
    spectrum /= np.sqrt(np.maximum(np.arange(spectrum.shape[-1]), 1.0))
    signal: npt.NDArray[np.float64] = np.fft.irfft(spectrum, shape[-1], axis=-1)
    signal -= signal.mean()
    signal /= max(float(signal.std()), 1e-12)
    return signal
