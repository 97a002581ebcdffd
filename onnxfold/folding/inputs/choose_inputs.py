"""The choice of inputs of the main graph, by method and request, with one trial run; several folds may share it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from os import PathLike

import numpy as np

from onnxfold.budget.costs.running import forward_cost
from onnxfold.config import FoldConfig
from onnxfold.errors import ConfigError, EndlessRunError, VerificationError
from onnxfold.files import Cache
from onnxfold.folders import takes_folders
from onnxfold.folding.inputs.compare_inputs import are_large, compare_inputs
from onnxfold.folding.methods import Method, find_method
from onnxfold.folding.open_model import OpenedModel, Opening, open_model
from onnxfold.graph.files.load import ModelLike, blames_broken_files, load
from onnxfold.graph.run.session import count_samples, fixed_batch, in_batches, require_trial_run, sample_count
from onnxfold.graph.shapes.footprint import Footprint, feed_shapes
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_inputs import checked_labels, input_infos, require_file, require_samples, select_samples
from onnxfold.inputs.given_samples import UserSources, given_samples
from onnxfold.inputs.input_plan import InputRequest, planned_leaves, planned_samples
from onnxfold.inputs.make_inputs import model_inputs
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import LEAVES
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.language_model import VARIED, Sampling
from onnxfold.inputs.tokens.tokenizer import read_tokenizer
from onnxfold.machine.memory import memory_limit
from onnxfold.progress import Progress, silent
from onnxfold.statistics.activations import Activations, Batches

#: The part of the samples that decides where folds are shown the others.
HELD_OUT = 4
_BATCH = 64


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled samples, split."""

    #: Samples that folds may be fitted on; None where the request names other inputs, and all samples decide.
    shown: dict[str, Array] | None
    held_out: Batches  # batches of the samples that decide
    labels: Array  # classes of the samples that decide


def labelled_samples(view: GraphView, config: FoldConfig) -> Labelled:
    """Return the labelled samples of a request.

    Which samples decide is drawn with the request's seed: a file may be sorted by class. Of the others, no more are
    shown to the folds than would be generated.
    """
    assert config.data is not None
    infos = input_infos(view)
    samples = given_samples(infos, config.data, None, most=0, interface=token_interface(view))
    count = sample_count(samples.arrays)
    labels = checked_labels(samples.labels, count)
    fixed = fixed_batch(info.shape for info in infos)
    if config.calibration is not None or config.inputs != "auto":
        return Labelled(None, list(in_batches(samples.arrays, fixed or _BATCH)), labels)
    batch = fixed or 1
    held = count // HELD_OUT // batch * batch
    if not held:
        raise ConfigError(f"{count} samples are too few to hold a quarter of them out: give more")
    order = np.random.default_rng(config.seed).permutation(count)
    cost, requested = forward_cost(view), InputRequest(config.samples)
    most = planned_leaves(view, planned_samples(view, cost, requested)[0], cost, requested)
    shown = min(max(most // batch, 1), (count - held) // batch) * batch
    decide, rest = np.sort(order[:held]), np.sort(order[held : held + shown])
    held_out = list(in_batches(select_samples(samples.arrays, decide), fixed or _BATCH))
    return Labelled(select_samples(samples.arrays, rest), held_out, labels[decide])


#: Samples that show whether a network runs.
_FEW = 2


@dataclass(frozen=True, eq=False)
class ChosenInputs:
    """The inputs that the main graph is run on."""

    inputs: ModelInputs | None  # none where it is not run
    #: Why it is not run, which options change nothing, which limits reduced the request, what the cache could not do.
    notes: tuple[str, ...] = ()
    labelled: Labelled | None = None  # labelled samples that decide how far to fold

    def repeatable_request(self, config: FoldConfig) -> FoldConfig:
        """Return the request that gives the same inputs at any speed of the machine."""
        return replace(config, input_steps=self.inputs.steps) if self.inputs is not None and self.inputs.cut else config


def choose_inputs(
    opened: OpenedModel, config: FoldConfig, method: Method, progress: Progress, sampling: Sampling = VARIED
) -> ChosenInputs:
    """Generate or read inputs, and run the main graph on one batch of them."""
    view, cache = opened.view, Cache(config.cache)
    labelled = labelled_samples(view, config) if config.data is not None else None
    if labelled is not None and labelled.shown is not None:
        config = replace(config, calibration=labelled.shown)
    kind = config.inputs if config.inputs != "auto" else method.inputs
    sources = UserSources(config.calibration, config.pixel_scale, opened.source, config.tokenizer, method.adds_text)
    request = InputRequest(config.samples, config.input_seconds, tuple(config.input_steps), config.seed, sampling)
    try:
        inputs = model_inputs(view, kind, sources, request, cache=cache, progress=progress)
        _require_memory(opened, inputs)
        _require_run(view, inputs)
        # What a clock cut is made again by its steps alone.
        if kind == "auto" and inputs.facts.is_inverted and are_large(inputs) and not (inputs.cut or request.steps):
            alike = replace(request, samples=request.samples or count_samples(inputs.batches))
            leaves = model_inputs(view, LEAVES, sources, alike, cache=cache, progress=progress)
            leaves = replace(leaves, reason="tried beside inverted images")
            inputs = compare_inputs(opened, [inputs, leaves], config.seed, cache, progress)
            if not inputs.facts.is_inverted:
                leaves = model_inputs(view, LEAVES, sources, request, cache=cache, progress=progress)
                inputs = replace(leaves, reason=inputs.reason)
        elif inputs.facts.is_data and are_large(inputs) and method.partitioner.needs_moments:
            inputs = compare_inputs(opened, [inputs, replace(inputs, is_doubted=True)], config.seed, cache, progress)
    except (VerificationError, MemoryError) as error:
        if config.calibration is not None or config.quantizes:
            raise
        note = f"the network cannot be run on generated inputs, so it was repaired from its weights: {error}"
        return ChosenInputs(None, (note, *cache.notes))
    return ChosenInputs(inputs, (*inputs.notes, *cache.notes), labelled)


def generates(config: FoldConfig) -> bool:
    """Whether no samples are given, so that a network is run on generated inputs."""
    return config.calibration is None and config.data is None


def require_given(config: FoldConfig) -> None:
    """Check that the data of a request is there."""
    scaled = config.pixel_scale is not None
    if config.tokenizer is not None:
        read_tokenizer(config.tokenizer)
    if isinstance(config.data, str | PathLike):
        require_file(config.data)
    if isinstance(config.calibration, str | PathLike):
        require_samples(config.calibration, scaled=scaled)
    elif scaled:
        raise ConfigError("mean, std and channels are for a folder of images: give calibration, too, or leave them out")


def _require_run(view: GraphView, inputs: ModelInputs) -> None:
    """Run a network on two samples, or on a whole batch where it refuses these or they prove little."""
    # One would hide a shape that holds for one sample only. Drawn integers may be lengths, as the number of a graph's
    # nodes is, and those of two samples fit together by chance.
    first = inputs.batches[0]
    counts = (
        inputs.facts.is_drawn and not inputs.are_tokens and any(values.dtype.kind in "iu" for values in first.values())
    )
    if not inputs.fixed_batch and sample_count(first) > _FEW and not counts:
        try:
            return _run(view, next(in_batches(first, _FEW)), inputs)
        except EndlessRunError:
            raise
        except VerificationError:  # what was cut may not be samples
            pass
    return _run(view, first, inputs)


def _run(view: GraphView, batch: dict[str, Array], inputs: ModelInputs) -> None:
    """Run a network, and refuse generated inputs on which it gives no numbers, as where a mask leaves nothing."""
    walk = Activations(view, [batch])
    answers = set(view.output_names)
    for node in walk.walk():
        walk.run(node)
        for name in answers.intersection(node.output) if inputs.facts.is_drawn else ():
            values = walk.values[name][0]
            if values.dtype.kind == "f" and np.isnan(values).any():
                raise VerificationError(f"output '{name}' is NaN on generated inputs: give samples, --calibration")


def _require_memory(opened: OpenedModel, inputs: ModelInputs) -> None:
    """Refuse inputs on which the activations of the network, and of its fold beside it, do not fit into memory."""
    # Texts of one length may stand between those of another.
    largest = max(inputs.batches, key=lambda batch: sum(v.size for v in batch.values()) / sample_count(batch))
    shapes, first = feed_shapes(largest), sample_count(largest)
    footprint = Footprint.of(opened.view, shapes)
    walked = Footprint.of(opened.view, shapes, walked=True) if inputs.are_tokens else footprint
    shown = count_samples(inputs.front)
    footprint.require(f"running the network on {shown} samples", shown / first, networks=2)
    walked.require(f"running the network on {inputs.samples} samples", inputs.samples / first, networks=2)
    if footprint.unknown:
        # As it was given: bodies of the view are open, and its weights partly theirs.
        require_trial_run(load(opened.source), inputs.batches, "running the network")


def prepare_inputs(model: ModelLike, config: FoldConfig, progress: Progress = silent) -> ChosenInputs:
    """Return the inputs that all folds of a model with the same seed, kind of inputs and data read."""
    return inputs_by_seed(model, config, [config.seed], progress)[0]


@takes_folders
@blames_broken_files
def inputs_by_seed(
    model: ModelLike, config: FoldConfig, seeds: Iterable[int], progress: Progress, sampling: Sampling = VARIED
) -> list[ChosenInputs]:
    """Return the inputs that a request chooses with every seed; the model is opened once."""
    chosen = find_method(config.method, cluster=config.cluster, repair=config.repair)
    with memory_limit(config.max_memory):
        opening = Opening(needs_groups=False, sizes=generates(config))
        opened = open_model(model, config.input_shapes, progress, opening)
        requests = [replace(config, seed=seed) for seed in seeds]
        return [choose_inputs(opened, request, chosen, progress, sampling) for request in requests]
