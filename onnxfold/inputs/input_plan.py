"""The number of generated inputs, and of inversion steps; sizes for free dimensions of inputs, tried in onnxruntime.

Numbers follow from what a run costs, counted in multiply-accumulates, and from the request: the same request gives the
same inputs, whatever else the machine does. A clock is looked at only where the user gives a limit of time: an
inversion that really takes longer depends on the speed of the machine.
"""

import math
import sys
from dataclasses import astuple, dataclass, replace
from itertools import product
from math import prod

import numpy as np
from onnx import TensorProto

from onnxfold.budget.costs.weights import FREE_DIMENSION, common_batch
from onnxfold.config.quantities import show_bytes, show_seconds
from onnxfold.errors import EndlessRunError, OnnxFoldError
from onnxfold.graph.nodes import reached_nodes
from onnxfold.graph.run.session import Session
from onnxfold.graph.shapes.footprint import Footprint
from onnxfold.graph.tensors import Shape, is_float
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_inputs import input_infos
from onnxfold.inputs.images.input_scale import IMAGE_CHANNELS
from onnxfold.inputs.images.synthetic import ACTIVATION_BYTES, SAMPLES, sample_shapes
from onnxfold.inputs.inversion.deep_inversion import InversionSettings, StepCounts
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.language_model import VARIED, Sampling
from onnxfold.inputs.walk_batches import BATCH, affordable_samples, enough_samples, takes_more_behind_strides
from onnxfold.machine import memory

#: Seconds that generating inputs may take at the counted cost, unless a limit is given; no clock looks at them.
_COUNTED_SECONDS = 60.0
#: Cost of the forward passes of an inversion, whose backward passes take as long again, per second on two cores.
_INVERTED_PER_SECOND = 7.5e10
#: Cost of runs of single nodes per second on two cores.
_RUN_PER_SECOND = 5e10
#: Highest cost of the forward passes of all steps: half a minute in float32, half as long where matrices are multiplied
#: in bfloat16. More than twice as much gains no accuracy.
_INVERSION_COST = 27.0 * _INVERTED_PER_SECOND
#: Highest cost of a run over all generated samples: some seconds.
_RUN_COST = 3.5e11
#: The same where a walk takes most of them behind strides only: half a minute.
_STAGED_COST, _MOST_STAGED = 1.2e12, 256
#: Bytes of these samples themselves, all of which a walk holds.
_STAGED_BYTES = 1 << 27
#: Fewest samples, and where every layer sees many positions of each.
_FEWEST_SAMPLES, _FEWEST_LARGE = 32, 8
#: Bytes of the images of a folder, where nobody says how many there shall be; and the fewest of these.
_FOLDER_BYTES, _FEWEST_IMAGES = 1 << 29, 32
#: Inverted samples; more if all of their steps are affordable, and half as many where the fewest steps are not.
INVERTED = 128
_FEWEST_INVERTED = 64
_FEWEST_STEPS = 30
#: Steps of an inversion that the user asks for, however much they cost.
_LEAST_STEPS = 2


@dataclass(frozen=True)
class InputRequest:
    """The user's options for generated inputs."""

    #: Samples to generate: exactly so many, unless a given limit reduces it. By default their number follows from the
    #: cost.
    samples: int | None = None
    seconds: float | None = None  # most seconds to generate them in; without them, no clock is looked at
    #: Steps of an inversion, for every batch or for all, without regard to their cost; empty where the cost decides.
    steps: tuple[int, ...] = ()
    seed: int = 0
    sampling: Sampling = VARIED  # how a language model draws the text that it writes

    def limit(self, usual: float = math.inf) -> float:
        """Return the most seconds to generate inputs in, the usual ones where none are given."""
        return usual if self.seconds is None else self.seconds

    def most(self, cost: float, per_second: float) -> int:
        """Return how many samples of a cost fit into the seconds that are given."""
        seconds = self.limit()
        return int(seconds * per_second / cost) if cost and math.isfinite(seconds) else sys.maxsize


def fewest_samples(view: GraphView) -> int:
    """Return how many samples there are at least, whatever a run costs."""
    return min(_FEWEST_SAMPLES, max(enough_samples(view), _FEWEST_LARGE))


def planned_samples(view: GraphView, cost: float, requested: InputRequest) -> tuple[int, tuple[str, ...]]:
    """Return the number of samples to generate, and notes on limits that reduce it."""
    fit = most_samples(view)
    timely = requested.most(cost, _RUN_PER_SECOND)
    if requested.samples is None:
        fewest = fewest_samples(view)
        usual = affordable_samples(view, ACTIVATION_BYTES, fewest)
        if cost:
            usual = min(usual, max(int(_RUN_COST / cost), fewest))
        count = max(min(SAMPLES, usual, fit, timely), 1)
        return (count - count % BATCH if count > BATCH else count), ()
    count = max(min(requested.samples, fit, timely), 1)
    if count == requested.samples:
        return count, ()
    if fit <= timely:
        limit = f"the memory limit ({show_bytes(memory.limit())})"
    else:
        limit = f"--input-seconds {requested.limit():g} at the counted cost"
    return count, (f"{requested.samples} samples were requested; {limit} allows {count}",)


def planned_leaves(view: GraphView, samples: int, cost: float, requested: InputRequest) -> int:
    """Return the number of samples to draw where none are inverted: more than planned, where they take little time."""
    if requested.samples is not None or not cost:
        return samples
    drawn = 4 * sum(map(prod, sample_shapes(view).values())) // common_batch(view)
    most = min(_MOST_STAGED, int(_STAGED_COST / cost), _STAGED_BYTES // max(drawn, 1))
    most = min(most, requested.most(cost, _RUN_PER_SECOND))
    if most <= samples:  # of small images, nothing more is counted
        return samples
    most = min(most, most_samples(view))
    most -= most % BATCH
    return most if most > samples and takes_more_behind_strides(view, most) else samples


def planned_images(view: GraphView, samples: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the number of images to read from a folder, and notes on limits that reduce it; None samples: as usual."""
    most, limits = planned_samples(view, 0.0, InputRequest(samples or SAMPLES))
    image = 4 * sum(prod(d or 1 for d in (view.shape(name) or ())[1:]) for name in view.input_names)
    fit = max(_FOLDER_BYTES // image, _FEWEST_IMAGES)
    if samples is not None or most <= fit:
        return most, limits if samples else ()
    more = f"at most {fit} images are read, which take {show_bytes(_FOLDER_BYTES)}: --samples N reads more"
    return fit, (more,)


def most_samples(view: GraphView) -> int:
    """Return how many samples fit into the memory limit.

    Counted are their activations in the network and in its fold beside it, and themselves in double precision.
    """
    shapes = sample_shapes(view)
    drawn = 8 * sum(map(prod, shapes.values()))
    return Footprint.of(view, shapes).count_fitting(2, memory.limit(), drawn) * common_batch(view)


def planned_inversion(
    samples: int, cost: float, requested: InputRequest, *, has_statistics: bool
) -> tuple[int, InversionSettings, tuple[str, ...]]:
    """Return the number of samples to invert, the settings, and notes on limits that reduce it."""
    fits = min(InversionSettings.memory_bytes, memory.limit())
    settings = InversionSettings(exact_steps=requested.steps, memory_bytes=fits)
    affordable = min(_INVERSION_COST, requested.limit() * _INVERTED_PER_SECOND)
    fewest = cost * _FEWEST_STEPS  # of one sample
    notes: tuple[str, ...] = ()
    if requested.samples is not None and has_statistics:
        count = max(min(samples, requested.most(fewest, _INVERTED_PER_SECOND)), 1)
        if count < samples:
            limit = f"--input-seconds {requested.limit():g} at the counted cost"
            notes = (f"{samples} samples were requested; {limit} allows to invert {count} for {_FEWEST_STEPS} steps",)
    else:
        count = min(samples, INVERTED)
        if cost and has_statistics:
            count = min(samples, max(int(affordable / (cost * settings.steps.statistics)), INVERTED))
        if cost and count * fewest > affordable:
            count = min(count, max(int(affordable / fewest), _FEWEST_INVERTED))
    if not cost:  # sizes depend on data: as where it is high
        affordable, count = 0.0, count if requested.samples is not None else min(count, _FEWEST_INVERTED)
    per_step = max(cost * count, 1.0)
    least = _FEWEST_STEPS
    if requested.seconds is None:
        least = min(least, max(int(_COUNTED_SECONDS * _INVERTED_PER_SECOND / per_step), _LEAST_STEPS))
    if least < (settings.steps.fused, _FEWEST_STEPS)[has_statistics] and not requested.steps:
        seconds = math.ceil(per_step * _FEWEST_STEPS / _INVERTED_PER_SECOND)
        notes += (f"the inversion takes {least} steps, as many as its counted cost allows in "
                  f"{_COUNTED_SECONDS:g} s on two cores: allow more with --input-seconds {seconds}",)  # fmt: skip
    most = max(int(affordable / per_step), least)
    steps = StepCounts(*(min(steps, most) for steps in astuple(settings.steps)))
    return count, replace(settings, steps=steps), notes


def too_long(inverted: int, cost: float, requested: InputRequest) -> str:
    """Return why an inversion of so many samples is not the default; '' if its counted cost fits into the time."""
    seconds = cost * inverted * _FEWEST_STEPS / _INVERTED_PER_SECOND
    if seconds <= requested.limit(_COUNTED_SECONDS) or requested.steps:
        return ""
    return over_time("deep inversion", seconds)


def over_time(work: str, seconds: float) -> str:
    """Return that some work is left out for the time that it would take, and how to allow it."""
    allow = f"allow it with --input-seconds {math.ceil(seconds)}"
    return f"{work} would take about {show_seconds(seconds)} on two cores: {allow}"


_SQUARE = (FREE_DIMENSION, FREE_DIMENSION)
#: Height and width of an image, and of a line of text, whose readers take lines of one height.
_USUAL, _LINES = (224, 224), ((48, 320), (32, 320))
#: Height and width of images, and lengths of anything else, the most usual ones first: networks that halve an image
#: five times want multiples of 32, those that cut audio into windows want more samples than a window holds, and those
#: that read text take lines of one height.
_SIZES = (
    (_USUAL, FREE_DIMENSION), (_USUAL, 256), (_USUAL, 1024), (_USUAL, 16000),
    ((640, 640), FREE_DIMENSION), (_SQUARE, FREE_DIMENSION), *((line, FREE_DIMENSION) for line in _LINES),
)  # fmt: skip
#: Lengths of axes of weights that are tried; the largest length of those that are tried one after the other, and how
#: many weights may be multiplied by each of them.
_WEIGHT_SIZES, _LONGEST, _TRIED_WEIGHTS = 12, 512, 1 << 31
_NO_ARRAY = (TensorProto.STRING, TensorProto.UNDEFINED)


def free_sizes(view: GraphView) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of the inputs that have other free dimensions than the batch, with sizes in their place.

    Height and width of an image are 224, other dimensions 64; other usual sizes where onnxruntime does not run the
    network at these, or a result is empty, or one frame long, as of a single window of audio, and then those of the
    weights that read an input first, with a batch that is a length, too. Where a single length is free, as of frames of
    a spectrogram, whose bands are counted only where windows have passed them, it is the smallest that runs. Dimensions
    with one symbol get one size.
    """
    shapes = {name: view.shape(name) for name in view.input_names}
    if all(shape is None or None not in shape[1:] for shape in shapes.values()):
        return {}

    def changed(sizes: dict[str, Shape]) -> dict[str, Shape]:
        return {name: size for name, size in sizes.items() if size != (shapes[name] or ())}

    short = None
    for image, other in _SIZES:
        sizes = _with_sizes(view, image, other)
        length = _shortest_result(view, sizes)
        if length > 1:
            return changed(sizes)
        short = sizes if length and short is None else short
    if short is not None:
        return changed(short)
    usual = _with_sizes(view)
    for name, shape in shapes.items():
        free = sum(d is None for d in (shape or ())[1:])
        if shape is None or not 0 < free == len(shape) - 1:
            continue
        lengths = [(FREE_DIMENSION,) * free, *_sizes_of_weights(view, name, free)]
        for first, inner in product((shape[0], FREE_DIMENSION), lengths):
            if _runs(view, usual | {name: (first, *inner)}):
                return changed(usual | {name: (first, *inner)})
        if free == 1 and _takes_arrays(view) and (shortest := _shortest_input(view, usual, name)):
            return changed(usual | {name: shortest})
    return {}


def _shortest_input(view: GraphView, sizes: dict[str, Shape], name: str) -> Shape | None:
    """Return the smallest last axis of an input with which a network runs, behind a usual batch.

    Where the batch is a length, it also runs with one frame less: 62 rows of 52 numbers are 31 of 104, unlike 61.
    """
    weights, declared = sum(map(view.weight_size, view.float_weight_names())), sizes[name][0]
    longest = min(_LONGEST, _TRIED_WEIGHTS // max(weights, 1))
    batches = [(declared,)] if declared else [(None,), (FREE_DIMENSION, FREE_DIMENSION - 1)]
    try:
        session = Session(view)
        largest = _of_batch(sizes | {name: (batches[-1][0], longest)})
        session.require({name: np.empty(shape) for name, shape in largest.items()})
        for firsts, length in product(batches, range(2, longest + 1)):
            shapes = [_of_batch(sizes | {name: (first, length)}) for first in firsts]
            if all(_shortest_length(view, session, shape) for shape in shapes):
                return firsts[0], length
    except OnnxFoldError:
        pass
    return None


def _sizes_of_weights(view: GraphView, name: str, rank: int) -> list[tuple[int, ...]]:
    """Return lengths of `rank` neighbouring axes of the first weights that are computed with what an input gives."""
    sizes = list[tuple[int, ...]]()
    for node in reached_nodes(view.nodes, [name]):
        read = [n for n in node.input if n in view.weights and is_float(view.elem_type(n))]
        shapes = [tuple(view.weights[n].shape) for n in read]
        cuts = [shape[i : i + rank] for shape in shapes for i in reversed(range(len(shape) - rank + 1))]
        sizes += [lengths for lengths in cuts if min(lengths) > 1]
        if len(sizes) >= _WEIGHT_SIZES:
            break
    return list(dict.fromkeys(sizes))


def usual_sizes(view: GraphView) -> list[dict[str, Shape]]:
    """Return shapes of all inputs with sizes in place of free ones other than the batch, the most usual ones first."""
    sizes = [_with_sizes(view, image) for image in (_USUAL, *_LINES, _SQUARE)]
    return [shapes for i, shapes in enumerate(sizes) if shapes not in sizes[:i]]


def image_sizes(view: GraphView) -> dict[str, Shape]:
    """Return the usual shapes of images whose height and width are free with which the network runs."""
    *usual, plain = usual_sizes(view)
    if not usual or token_interface(view) is not None:
        return {}
    sizes = next((sizes for sizes in usual if _runs(view, sizes)), plain)
    changed = {name: size for name, size in sizes.items() if size != plain[name]}
    return {**changed, **needed_batch(view, sizes)} if changed else {}


def assumed_sizes(view: GraphView) -> dict[str, Shape]:
    """Return the shapes of inputs that a network is run with where free dimensions have not the usual length."""
    return dict(image_sizes(view) or needed_sizes(view) or needed_batch(view))


def needed_batch(view: GraphView, sizes: dict[str, Shape] | None = None) -> dict[str, tuple[int, ...]]:
    """Return shapes of one sample for the inputs with a free batch, where the network does not run on two.

    A state may have a fixed size, or an exporter may have written the batch that it saw into a Reshape.
    """
    shapes = _with_sizes(view) if sizes is None else sizes
    free = {n: (1, *(d or 1 for d in shape[1:])) for n, shape in shapes.items() if shape[:1] == (None,)}
    if not free or token_interface(view) is not None or _runs(view, shapes, batch=2):
        return {}
    return free if _runs(view, shapes) else {}


def needed_sizes(view: GraphView) -> dict[str, tuple[int, ...]]:
    """Return shapes of all inputs for a network that does not run at the usual length, or gives one frame there."""
    shapes = {name: view.shape(name) for name in view.input_names}
    if all(shape is None or None not in shape[1:] for shape in shapes.values()) or token_interface(view) is not None:
        return {}
    usual = _with_sizes(view)
    length = _shortest_result(view, usual)
    if length > 1:
        return {}
    sizes = free_sizes(view)
    full = {name: sizes.get(name, shape) or () for name, shape in shapes.items()} if sizes else {}
    return {} if length and full == usual else _of_batch(full)


def _with_sizes(view: GraphView, image: tuple[int, int] = _SQUARE, other: int = FREE_DIMENSION) -> dict[str, Shape]:
    sized: dict[str, Shape] = {}
    batched = [name for name in view.input_names if (view.shape(name) or ())[:1] == (None,)]
    of_symbols = {view.symbols(name)[0]: 1 for name in batched}
    for name in view.input_names:
        shape = view.shape(name) or ()
        symbols = view.symbols(name) or ("",) * len(shape)
        is_first = len(shape) == 4 and shape[1] in IMAGE_CHANNELS
        is_last = len(shape) == 4 and shape[3] in IMAGE_CHANNELS
        sides = shape[2:] if is_first else shape[1:3] if is_last else ()
        lengths = [other] * len(shape)
        if set(sides) == {None}:  # height and width of an image are free
            lengths[1 + is_first : 3 + is_first] = image
        if batched and [d is None for d in shape] == [False, True, False]:  # states of layers, each of a batch
            lengths[1] = 1
        free = [of_symbols.setdefault(s, size) if s else size for s, size in zip(symbols, lengths, strict=True)]
        sized[name] = tuple(d if d is not None or i == 0 else free[i] for i, d in enumerate(shape))
    return sized


def _runs(view: GraphView, shapes: dict[str, Shape], batch: int = 1) -> bool:
    """Whether onnxruntime runs the network on zeros of these shapes, for which there is memory, with results."""
    return _shortest_result(view, shapes, batch) > 0


def _shortest_result(view: GraphView, shapes: dict[str, Shape], batch: int = 1) -> int:
    """Return the smallest length of the results on zeros along a free axis, 0 where the network does not run."""
    if not _takes_arrays(view):
        return 0
    trial = view.copy()
    fixed = _of_batch(shapes, batch)
    trial.fix_input_shapes(fixed)
    try:
        session = Session(trial)
    except OnnxFoldError:
        return 0
    return _shortest_length(view, session, fixed)


def _takes_arrays(view: GraphView) -> bool:
    return all(view.elem_type(name) not in _NO_ARRAY for name in view.input_names)


def _of_batch(shapes: dict[str, Shape], batch: int = 1) -> dict[str, tuple[int, ...]]:
    return {name: tuple(batch if d is None else d for d in shape) for name, shape in shapes.items()}


def _shortest_length(view: GraphView, session: Session, shapes: dict[str, tuple[int, ...]]) -> int:
    try:
        results = session.run({info.name: np.zeros(shapes[info.name], info.dtype) for info in input_infos(view)})
    except EndlessRunError:  # so it would be with other sizes, after a minute each
        raise
    except OnnxFoldError:
        return 0
    if not all(np.size(result) for result in results):
        return 0
    pairs = zip((view.shape(name) or () for name in view.output_names), results, strict=False)
    free = (
        size for shape, result in pairs for d, size in zip(shape[1:], np.shape(result)[1:], strict=False) if d is None
    )
    return min(free, default=sys.maxsize)
