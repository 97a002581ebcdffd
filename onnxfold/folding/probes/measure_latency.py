"""The table of latencies that a fold chooses widths by: read from a file, or measured on this machine."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib import metadata
from os import PathLike
from pathlib import Path

from onnxfold.budget.costs.running import timed_nodes
from onnxfold.budget.devices import load_device
from onnxfold.config import FoldConfig
from onnxfold.errors import ConfigError, NotMeasurableError, VerificationError
from onnxfold.files import Cache, key_of, open_regular
from onnxfold.files.cache import machine_kind
from onnxfold.folding.open_model import OpenedModel
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.synthetic import noise_inputs
from onnxfold.latency.layers import LatencyProfile, profile_layers
from onnxfold.latency.micro_models import LayerShape, Measure, Sample, measure_shape, pairs_of
from onnxfold.latency.table import LatencyTable, samples_of
from onnxfold.progress import Progress

#: A profile that varies by more is made again; so it may be the last time where folds are measured afterwards.
MOST_SPREAD = 0.05
_ATTEMPTS = 3
#: Seconds of measuring layers alone, and of one of them at most.
_SECONDS, _MOST_SECONDS = 30.0, 0.5
#: Layers that take less than this part of a run follow their multiply-accumulates.
_NEGLIGIBLE = 0.002
#: Blocks of channels that processors have, and a convolution that tells which.
_BLOCKS = (8, 16)
_PROBE = LayerShape("conv", 48, 48, (True, True), (1, 28, 28), (("kernel_shape", (3, 3)), ("pads", (1, 1, 1, 1))))
_LARGEST_FILE = 64 << 20


def profile_network(view: GraphView, threads: int) -> LatencyProfile:
    """Return where the time of a run goes."""
    return profile_layers(view, partial(noise_inputs, samples=1, seed=0, view=view), threads=threads)


def add_latency_table(opened: OpenedModel, config: FoldConfig, progress: Progress) -> FoldConfig:
    """Return a request with the table of latencies as plain values, if widths depend on one."""
    if not config.needs_latency:
        return config
    source = config.latency_table
    if source is None:
        if config.device is None:
            return replace(config, latency_table=measure_table(opened, config, progress).to_dict())
        source = load_device(config.device).latency_table
    if not source:
        raise ConfigError(
            f"the latency on '{config.device}' is not known here: fold with max_latency on the device itself, and give "
            "the report of that fold as --latency-table, or name it in a profile of your own as latency_table"
        )
    return replace(config, latency_table=_read(source).to_dict())


def _read(table: str | PathLike[str] | Mapping[str, object]) -> LatencyTable:
    if isinstance(table, Mapping):
        return LatencyTable.from_dict(table)
    path = Path(table)
    try:
        with open_regular(path) as file:
            return LatencyTable.from_dict(json.loads(file.read(_LARGEST_FILE)))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"latency table '{path}' cannot be read: {error}") from None


def measure_table(opened: OpenedModel, config: FoldConfig, progress: Progress) -> LatencyTable:
    """Return the times of a model and its layers on this machine, layers at up to 3 x 3 widths."""
    threads, cache = config.threads, Cache(config.cache)
    progress("measure latency", 0, 0)
    view = opened.scopes[0].analysed if len(opened.scopes) == 1 else load(opened.source, opened.view.run_shapes)
    try:
        profile = _steady(lambda: profile_network(view, threads), corrected=config.max_latency is not None)
    except VerificationError as error:
        raise VerificationError(f"latency cannot be measured: {error}") from None
    nodes: dict[str, float] = {}
    for layer in profile.layers:
        nodes[layer.output] = nodes.get(layer.output, 0.0) + layer.seconds

    def measure(shape: LayerShape, pairs: Iterable[tuple[int, int]], seconds: float) -> tuple[Sample, ...]:
        pairs = list(pairs)
        cores = str(os.cpu_count())
        key = key_of({"layer": shape.key, "pairs": repr(pairs), "threads": str(threads), "cores": cores})
        kept = cache.read("latency", key, lambda content: samples_of("the cache", json.loads(content)))
        if kept is not None:
            return kept
        samples = measure_shape(shape, pairs, seconds, threads=threads)
        cache.put("latency", key, json.dumps(samples).encode())
        return samples

    block = _block(measure)
    least = _NEGLIGIBLE * profile.seconds
    shapes = {t.shape: None for t in timed_nodes(opened.graphs) if t.shape and nodes.get(t.name, 0.0) >= least}
    layers: dict[str, tuple[Sample, ...]] = {}
    for i, shape in enumerate(shapes):
        progress("measure layers", i, len(shapes))
        if any(shape.varies):
            layers[shape.key] = measure(shape, pairs_of(shape, block), min(_SECONDS / len(shapes), _MOST_SECONDS))
    machine = {
        "processor": machine_kind().split("\n")[3] if machine_kind().count("\n") > 2 else machine_kind(),
        "cores": str(os.cpu_count()),
        "onnxruntime": metadata.version("onnxruntime"),
    }
    return LatencyTable(profile.seconds, nodes, layers, block, threads, machine=machine)


def _steady(profile: Callable[[], LatencyProfile], *, corrected: bool) -> LatencyProfile:
    """Return the steadiest of some profiles; where nothing corrects it later, only if it hardly varies."""
    tried: list[LatencyProfile] = []
    while len(tried) < _ATTEMPTS and (not tried or tried[-1].spread > MOST_SPREAD):
        tried.append(profile())
    best = min(tried, key=lambda timing: timing.spread)
    if best.spread > MOST_SPREAD and not corrected:
        raise NotMeasurableError(
            f"not measurable on this machine now: the latency of the input varies by {best.spread:.0%}, more than "
            f"{MOST_SPREAD:.0%}; end what else runs, or give the report of an earlier fold as --latency-table"
        )
    return best


def _block(measure: Measure) -> int:
    """Return how many channels of a convolution are computed at a time."""
    small, large = _BLOCKS
    widths = (2 * large, 2 * large + small, 3 * large)
    samples = measure(_PROBE, [(w, w) for w in widths], _MOST_SECONDS)
    if len(samples) < len(widths):
        return small
    below, between, above = (seconds for _, _, seconds in samples)
    return large if between > below + 0.75 * (above - below) else small
