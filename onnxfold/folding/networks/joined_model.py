"""Networks that are merged, as one model: the input of a fold that knows which channels come from which network."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from onnx import ModelProto

from onnxfold.cluster.partition import Labels
from onnxfold.config import FoldConfig
from onnxfold.config.checks import LARGEST_SEED
from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.fidelity.held_out import Answering
from onnxfold.folding.fold_model import FoldedModel
from onnxfold.folding.inputs.choose_inputs import ChosenInputs, choose_inputs
from onnxfold.folding.methods import Method
from onnxfold.folding.open_model import OpenedModel, Scope, bytes_of, stored_size
from onnxfold.graph.bodies import needed_nodes
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.nodes import node_key
from onnxfold.graph.run.session import Feeds, Session
from onnxfold.graph.tensors import Array
from onnxfold.inputs.images.synthetic import noise_inputs
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import LEAVES
from onnxfold.inputs.tokens.token_plan import size_of
from onnxfold.passes.join.join import BlocksToGroups, JoinedGraph, join, open_networks
from onnxfold.passes.join.structure import Match, SourceNetwork
from onnxfold.progress import Progress
from onnxfold.report import ModelSize

#: Largest difference of the joined graph's outputs, relative to the largest output.
EXACT = 1e-4
_SAMPLES = 4
_SEED = 0x4E1D
#: Where the names of classes lie in the metadata.
LABELS = "labels"


@dataclass(frozen=True, eq=False)
class JoinedModel:
    """Networks as one model."""

    sources: tuple[ModelLike, ...]  # the networks as they were given
    networks: tuple[SourceNetwork, ...]  # the same, open, in forms that correspond
    graph: JoinedGraph  # all of them; weights between channels of different networks are written, as zeros
    model: ModelProto
    exact: ModelProto  # the same with grouped convolutions, where these say it without zeros
    size: ModelSize  # what the networks cost together
    matches: tuple[Match, ...]  # what corresponds in each network to the tensors of the first one
    notes: tuple[str, ...] = ()  # what was changed to join them

    def share(self, outputs: Sequence[Array], number: int) -> list[Array]:
        """Return the outputs of a network by its number, as those of the joined model tell them.

        Of outputs beside each other, a network's own; of a mean, all; of the first network's, all of it and nothing of
        the others.
        """
        own: list[Array] = []
        for output, (values, how) in enumerate(zip(outputs, self.graph.heads, strict=True)):
            if how == "join":
                shapes = [network.view.shape(network.view.output_names[output]) or () for network in self.networks]
                widths = [(shape[min(1, len(shape) - 1)] or 0) if shape else 0 for shape in shapes]
                own.append(np.split(values, np.cumsum(widths)[:-1], axis=min(1, values.ndim - 1))[number])
            elif how != "first" or number == 0:
                own.append(values)
        return own

    def join_outputs(self, outputs: Sequence[Sequence[Array]]) -> list[Array]:
        """Return the outputs of the joined model, from those of the networks."""
        merged = []
        for parts, how in zip(zip(*outputs, strict=True), self.graph.heads, strict=True):
            if how == "join":
                merged.append(np.concatenate(parts, axis=min(1, parts[0].ndim - 1)))
            else:
                merged.append(parts[0] if how == "first" else np.mean(parts, axis=0))
        return merged

    def sources_of(self, scope: Scope) -> tuple[Labels | None, ...]:
        """Return the network that every unit of every group belongs to; None where that is not known."""
        sources, owners, copies = [], self.graph.owners, scope.copies
        for group in scope.analysis.groups:
            places = ((m.axis, m.positions[:, 0]) for m in group.members)
            stored = ((replace(axis, tensor=copies.get(axis.tensor, axis.tensor)), units) for axis, units in places)
            sources.append(next((owners[axis][units] for axis, units in stored if axis in owners), None))
        return tuple(sources)

    def behind(self, node: str) -> list[str]:
        """Return the groups whose channels are not all computed up to a node: its own ones are."""
        view = self.graph.view
        start = next((n for n in view.nodes if node in (n.name, *n.output)), None)
        if start is None:
            raise ConfigError(f"until='{node}' is no node of {self.networks[0].name}: `onnxfold inspect` lists some")
        before = needed_nodes(view, start.output, {})
        reached = {o for n in view.nodes if node_key(n) in before for o in n.output}
        return [
            group.name for group in self.networks[0].analysis.groups
            if not any(axis.tensor in reached for axis in group.tensors)
        ]  # fmt: skip


def join_models(
    models: Sequence[ModelLike], heads: str = "auto", input_shapes: Mapping[str, Sequence[int]] | None = None,
    labels: Sequence[str] = (),
) -> JoinedModel:  # fmt: skip
    """Join networks of one layout, and check that the result gives their outputs."""
    networks, matches, notes = open_networks(models, input_shapes)
    graph = join(networks, matches, heads)
    _name_classes(graph, models, labels)
    model = to_model(graph.view)
    grouped = graph.view.copy()
    BlocksToGroups(len(networks))(grouped)
    sizes = [stored_size(view, bytes_of(source, view)) for source in models for view in [load(source)]]
    macs = [size.macs for size in sizes if size.macs is not None]
    all_macs = sum(macs) if len(macs) == len(sizes) else None
    size = ModelSize(sum(s.parameters for s in sizes), all_macs, sum(s.size_bytes for s in sizes))
    joined = JoinedModel(tuple(models), tuple(networks), graph, model, to_model(grouped), size, tuple(matches), notes)
    _require_exact(joined)
    return joined


def remove_zero_blocks(folded: FoldedModel, networks: JoinedModel | None) -> FoldedModel:
    """Return a folded model that stores no zeros between channels of different networks, where all kept theirs."""
    if networks is None or not BlocksToGroups(len(networks.networks))(folded.view).modified:
        return folded
    return replace(folded, size=size_of(folded.view))


def _name_classes(graph: JoinedGraph, models: Sequence[ModelLike], labels: Sequence[str]) -> None:
    """Write the names of the classes into the metadata."""
    if not labels and set(graph.heads) == {"join"}:
        lists = [_labels_of(load(model).model) for model in models]
        labels = [name for names in lists for name in names] if all(lists) else ()
    if not labels:
        return
    shape = graph.view.shape(graph.view.output_names[0]) or ()
    classes = shape[min(1, len(shape) - 1)] if shape else None
    if classes is not None and classes != len(labels):
        raise ConfigError(f"{len(labels)} labels were given, and the merged network has {classes} classes")
    props = graph.view.model.metadata_props
    entry = next((prop for prop in props if prop.key == LABELS), None) or props.add(key=LABELS)
    entry.value = json.dumps(list(labels))


def _labels_of(model: ModelProto) -> list[str]:
    text = next((prop.value for prop in model.metadata_props if prop.key == LABELS), "[]")
    try:
        names = json.loads(text)
    except ValueError:
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def _require_exact(joined: JoinedModel) -> None:
    """Run everything in onnxruntime on a little noise, and compare."""
    sessions = [Session(source) for source in joined.sources]
    feeds = noise_inputs(sessions[0].inputs, samples=_SAMPLES, seed=_SEED, view=joined.graph.view)
    own = [_run_by_place(session, feeds) for session in sessions]
    for expected, got in zip(joined.join_outputs(own), Session(joined.exact).run(feeds), strict=True):
        scale = float(np.abs(expected).max(initial=0.0))
        off = float(np.abs(expected - got).max(initial=0.0)) if expected.shape == got.shape else np.inf
        if not off <= EXACT * scale:
            called = ", ".join(network.name for network in joined.networks)
            raise UnsupportedModelError(
                f"{called} cannot be merged: beside each other, they would compute something else (off by {off:.3g}); "
                "please report this"
            )


def _run_by_place(session: Session, feeds: Feeds) -> list[Array]:
    """Return the outputs of a network whose inputs are in the order of those of the first, under names of its own."""
    return session.run(dict(zip((info.name for info in session.inputs), feeds.values(), strict=True)))


def joined_inputs(joined: JoinedModel, config: FoldConfig, method: Method, progress: Progress) -> ChosenInputs:
    """Generate inputs with every network by itself, and put them behind each other.

    What is inverted from one network alone says little of what the others do.
    """
    inputs: list[ModelInputs] = []
    notes: dict[str, None] = {}
    for i, network in enumerate(joined.networks):
        scope = Scope(network.view, network.analysis, [], {})
        opened = OpenedModel(joined.sources[i], ModelSize(0, None, 0), [scope])
        part = choose_inputs(opened, _part(config, i, len(joined.networks)), method, progress)
        if part.inputs is None:
            return part
        names = dict(zip(network.view.input_names, joined.networks[0].view.input_names, strict=True))
        inputs.append(part.inputs.renamed(names))
        notes |= dict.fromkeys(part.notes)
    kinds = list(dict.fromkeys(source.kind for source in inputs))
    reasons = (f"{network.name}: {source.reason}" for network, source in zip(joined.networks, inputs, strict=True))
    together = replace(
        inputs[0],
        batches=[batch for source in inputs for batch in source.batches],
        kind=kinds[0] if len(kinds) == 1 else LEAVES,
        reason="; ".join(reasons),
        steps=tuple(step for source in inputs for step in source.steps),
        cut=any(source.cut for source in inputs),
    )
    return ChosenInputs(together, tuple(notes))


def _part(config: FoldConfig, index: int, count: int) -> FoldConfig:
    """Return the request for the inputs of one network."""
    samples = None if config.samples is None else max(config.samples // count, 1)
    steps = tuple(config.input_steps)
    if len(steps) > 1 and len(steps) % count == 0:
        each = len(steps) // count
        steps = steps[index * each : (index + 1) * each]
    return replace(config, samples=samples, input_steps=steps, seed=(config.seed + index) % LARGEST_SEED)


def network_twice(joined: JoinedModel, merged: Session, number: int) -> tuple[Answering, Answering]:
    """Return a network by its number, as it was given, and as a merged model answers in its place."""
    own, names = Session(joined.sources[number]), joined.networks[number].view.output_names
    as_merged = Answering(names, lambda feeds: joined.share(merged.run(feeds), number))
    return Answering(own.output_names, partial(_run_by_place, own)), as_merged
