"""Inputs of networks that are merged: an equal part from each of them."""

from dataclasses import replace

from onnxfold.config import FoldConfig
from onnxfold.config.checks import LARGEST_SEED
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.inputs.choose_inputs import ChosenInputs, choose_inputs
from onnxfold.folding.methods import Method
from onnxfold.folding.networks.joined_model import JoinedModel
from onnxfold.folding.open_model import OpenedModel, Scope
from onnxfold.inputs.sample_kinds import LEAVES
from onnxfold.progress import Progress
from onnxfold.report import ModelSize


def inputs_for(task: FoldTask, *, needed: bool) -> ChosenInputs:
    """Return the inputs of a model: if it is made of networks and no samples are given, a part from each of them."""
    config, networks = task.config, task.networks
    if needed and task.shared_inputs is not None:
        return task.shared_inputs
    if networks is None or not needed or config.calibration is not None or config.data is not None:
        return choose_inputs(task.opened, config, task.method, task.progress, needed=needed)
    return joined_inputs(networks, config, task.method, task.progress)


def joined_inputs(joined: JoinedModel, config: FoldConfig, method: Method, progress: Progress) -> ChosenInputs:
    """Generate inputs with every network by itself, and put them behind each other.

    What is inverted from one network alone says little of what the others do.
    """
    parts: list[ChosenInputs] = []
    for i, network in enumerate(joined.networks):
        scope = Scope(network.view, network.analysis, [], {})
        opened = OpenedModel(joined.sources[i], ModelSize(0, None, 0), [scope])
        part = choose_inputs(opened, _part(config, i, joined.count), method, progress, needed=True)
        if part.inputs is None:
            return part
        parts.append(part)
    names = joined.networks[0].view.input_names
    batches = []
    for network, part in zip(joined.networks, parts, strict=True):
        assert part.inputs is not None
        own = dict(zip(network.view.input_names, names, strict=True))
        batches += [{own[name]: values for name, values in batch.items()} for batch in part.inputs.batches]
    inputs = [part.inputs for part in parts if part.inputs is not None]
    kinds = list(dict.fromkeys(source.kind for source in inputs))
    reasons = (f"{network.name}: {source.reason}" for network, source in zip(joined.networks, inputs, strict=True))
    together = replace(
        inputs[0],
        batches=batches,
        kind=kinds[0] if len(kinds) == 1 else LEAVES,
        reason="; ".join(reasons),
        steps=tuple(step for source in inputs for step in source.steps),
        cut=any(source.cut for source in inputs),
    )
    return ChosenInputs(together, tuple(dict.fromkeys(note for part in parts for note in part.notes)))


def _part(config: FoldConfig, index: int, count: int) -> FoldConfig:
    """Return the request for the inputs of one network."""
    samples = None if config.samples is None else max(config.samples // count, 1)
    steps = tuple(config.input_steps)
    if len(steps) > 1 and len(steps) % count == 0:
        each = len(steps) // count
        steps = steps[index * each : (index + 1) * each]
    return replace(config, samples=samples, input_steps=steps, seed=(config.seed + index) % LARGEST_SEED)
