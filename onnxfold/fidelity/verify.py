"""Verify a folded model: it loads, it runs, and its interface is unchanged."""

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import onnx

from onnxfold.budget.costs.weights import FREE_DIMENSION
from onnxfold.errors import EndlessRunError, MemoryLimitError, VerificationError
from onnxfold.fidelity import held_out
from onnxfold.fidelity.held_out import HeldOut
from onnxfold.fidelity.measures import fidelity
from onnxfold.graph.files.load import ModelLike, checker_problem, load
from onnxfold.graph.files.save import PROTOBUF_LIMIT, loaded_bytes, save, to_model, weight_bytes
from onnxfold.graph.run.session import Feeds, Session
from onnxfold.graph.shapes.open_shapes import open_shapes
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_inputs import input_infos
from onnxfold.inputs.images.synthetic import noise_inputs
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.tokens.cache_heads import cache_outputs, comparable_outputs
from onnxfold.inputs.walk_batches import BATCH_BYTES, affordable_samples
from onnxfold.latency.interleaved import latency_of_two
from onnxfold.machine import memory
from onnxfold.progress import Progress, silent, under
from onnxfold.report import FidelityReport, LatencyRecord
from onnxfold.statistics.activations import Activations

#: Samples of noise; fewer where they are large, but two, since a single one hides a shape that holds for it alone.
_SAMPLES, _FEWEST = 4, 2


@dataclass(frozen=True)
class VerificationResult:
    """Outcome of a verification."""

    fidelity: FidelityReport | None  # closeness on held-out generated inputs; None where it could not be measured
    notes: tuple[str, ...] = ()  # what could not be checked, and whether the model became slower
    latency: LatencyRecord | None = None  # latencies of the original and of the folded model
    samples: FidelityReport | None = None  # closeness on a user's samples that were held out of the fit
    unmeasured: str = ""  # why the closeness could not be measured; empty where it was


class WalkedNetwork:
    """A network that onnxruntime has no memory for as a whole, run node by node."""

    is_twin = False

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self.inputs, self.output_names = input_infos(view), view.output_names

    def run(self, feeds: Feeds) -> list[Array]:
        """Return all outputs for one set of inputs."""
        walk = Activations(self._view, [dict(feeds)])
        outputs = {name: walk.values[name][0] for name in self.output_names if name in walk.values}
        wanted = set(self.output_names)
        for node in walk.walk():
            walk.run(node)
            outputs |= {name: walk.values[name][0] for name in wanted.intersection(node.output)}
        return [outputs[name] for name in self.output_names]


def open_network(model: ModelLike, view: GraphView) -> Session | WalkedNetwork:
    """Return a model in onnxruntime, as a whole where its weights fit into memory."""
    return WalkedNetwork(view) if loaded_bytes(view) > memory.limit() else Session(model, counted=view)


def interface(view: GraphView, renamed: Mapping[str, str]) -> list[tuple[str, int, int]]:
    """Return name, element type and rank of every input and output."""
    infos = [i for i in view.graph.input if i.name not in view.weights] + list(view.graph.output)
    kinds = [(i.name, i.type.tensor_type.elem_type, len(i.type.tensor_type.shape.dim)) for i in infos]
    return [(new, *kind) for name, *kind in kinds if (new := renamed.get(name, name))]


@dataclass(frozen=True, eq=False)
class Verification:
    """The check of a folded model; it measures latency, and fidelity on generated inputs that the fold has not seen.

    The check is structural: onnx's checker with full shape inference accepts the model, onnxruntime loads and runs it
    on a little noise, names, types and ranks of inputs and outputs are the original's, output shapes agree, and what
    was finite stays finite. How far the values moved is reported, not judged.
    """

    original: ModelLike
    view: GraphView  # the folded model
    seed: int = 0
    progress: Progress = silent
    threads: int | None = 1  # threads of the latency; None where it is not measured
    fitted_on: ModelInputs | None = None  # of a user's samples some are held out of the fit
    texts: held_out.Texts = field(default_factory=held_out.Texts)
    renamed: Mapping[str, str] = field(default_factory=dict)  # new names of outputs; empty where they went
    is_copy: bool = False  # whether nothing may differ, as where only words went: answers to noise tell enough

    @cached_property
    def before(self) -> GraphView:
        """The original."""
        return load(self.original)

    @cached_property
    def _may_differ(self) -> set[str]:
        """Outputs whose shapes values decide, too; caches may lose heads."""
        return open_shapes(self.before).union(cache_outputs(self.before.output_names))

    def run(self) -> VerificationResult:
        """Check the model in memory, or in a file where it is too large for that."""
        self.progress("verify in onnxruntime", 0, 0)
        was, is_now = interface(self.before, self.renamed), interface(self.view, {})
        if was != is_now:
            raise VerificationError(f"the interface changed: {was} became {is_now}")
        self.before.assume(self.view.input_shapes)
        if weight_bytes(self.view) <= PROTOBUF_LIMIT:
            return self._run(to_model(self.view))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "folded.onnx"
            save(self.view, path, external_data=True)
            return self._run(str(path))

    def _run(self, model: onnx.ModelProto | str) -> VerificationResult:
        notes = _checker_notes(self.original, model)
        # Of models over 2 GB only one is in memory at a time.
        folded = None if isinstance(model, str) else open_network(model, self.view)
        result = self._compare_original(model, folded)
        del folded
        memory.give_back()
        latency = None
        if result.fidelity is not None and not (isinstance(model, str) or self.is_copy or self.threads is None):
            feeds = partial(noise_inputs, samples=1, seed=self.seed, view=self.view)
            latency = latency_of_two((self.original, self.before), (model, self.view), feeds, threads=self.threads)
        notes += result.notes
        if latency is not None and latency.is_slower:
            notes += (f"the folded model is slower than its input by {latency.ratio - 1:.0%}: {latency}",)
        return replace(result, notes=notes, latency=latency)

    def _compare_original(
        self, model: onnx.ModelProto | str, folded: Session | WalkedNetwork | None
    ) -> VerificationResult:
        try:
            session = open_network(self.original, self.before)
        except VerificationError as error:
            return _unmeasured(f"the original does not load: {error}")
        try:
            count = affordable_samples(self.view, BATCH_BYTES, _FEWEST, _SAMPLES)
            feeds = noise_inputs(session.inputs, samples=count, seed=self.seed, view=self.view)
        except MemoryError:
            return _unmeasured("inputs of this size do not fit into memory")
        try:
            everything = dict(zip(session.output_names, session.run(feeds), strict=True))
        except EndlessRunError as error:
            return _unmeasured(f"the original does not run: {error}")
        except VerificationError as error:
            shapes = ", ".join(f"{name}:{'x'.join(map(str, v.shape))}" for name, v in feeds.items())
            return _unmeasured(f"the original does not run on {shapes}: {error}; give --input-shapes")
        if self.is_copy and folded is not None:
            outputs = folded.run(feeds)
            return VerificationResult(
                fidelity(session.output_names, list(everything.values()), outputs, inputs="random words")
            )
        # Of the folded model, whose constants are folded and functions inlined: it tells more about its inputs.
        writer = session if isinstance(session, Session) else None
        elsewhere = None if writer is None else self._run_elsewhere(writer)
        texts = replace(self.texts, writer=writer, beside=self.original)
        inputs = held_out.held_out_inputs(
            self.view, self.before, seed=self.seed, infos=session.inputs, texts=texts, progress=self.progress
        )
        if writer is None:  # every batch reads all weights again
            inputs = inputs.first(1)
        session.output_names = compared = comparable_outputs(self.before.output_names, self.view.output_names)
        expected = [everything[name] for name in compared]
        try:
            reference: held_out.Network = session
            user_samples: list[HeldOut] = []
            if folded is None:
                reference, inputs = held_out.recorded(session, inputs)
            elif self.fitted_on is not None and self.fitted_on.held_out:
                of_user = partial(HeldOut.of, kind="samples", infos=session.inputs, is_generated=False)
                user_samples = [of_user(self.fitted_on.held_out), of_user(self.fitted_on.batches)]
            was_twin = session.is_twin
            del session, writer
            folded = folded or open_network(model, self.view)
            folded.output_names = compared
            if was_twin != folded.is_twin:
                return _unmeasured("only one of the models runs in its own type")
            outputs = folded.run(feeds)
            self._require_shapes(compared, expected, outputs)
            if elsewhere is not None:
                self._require_shapes(compared, [elsewhere[1][name] for name in compared], folded.run(elsewhere[0]))
            fidelity(compared, expected, outputs, inputs="noise")  # raises where something is no longer finite
            del everything, expected, outputs

            def measure(compared: HeldOut, shown: HeldOut | None = None, *, writes: bool) -> FidelityReport:
                tell = under("verify, ", self.progress)
                read = texts.continuation((reference, folded), (self.before, self.view), tell, writes=writes)
                return held_out.measure_fidelity(
                    reference, folded, compared, called="held-out", view=self.before, texts=read, shown=shown
                )

            report = measure(inputs, writes=True)
            samples = measure(*user_samples, writes=False) if user_samples else None
        except held_out.NotRunError as error:
            return _unmeasured(f"the original does not run on {inputs.kind}: {error}; give --input-shapes")
        notes = list(report.notes)
        if report.samples < inputs.usual:
            few = f"fidelity was measured on {report.samples} samples instead of {inputs.usual}"
            notes.append(f"{few}: the network is large, so the confidence interval is wider")
        return VerificationResult(report, tuple(notes), samples=samples)

    def _run_elsewhere(self, session: Session) -> tuple[Feeds, dict[str, Array]] | None:
        """Return noise whose free dimensions are twice as long, and the original's answers; None where none runs."""
        longer = {}
        for name, declared in self.before.declared_shapes.items():
            assumed = self.view.input_shapes.get(name) or declared
            if None in declared[1:] and len(assumed) == len(declared):
                sizes = zip(declared[1:], assumed[1:], strict=True)
                longer[name] = assumed[0], *(size or 2 * (usual or FREE_DIMENSION) for size, usual in sizes)
        if not longer:
            return None
        other = self.view.copy()
        other.assume({**self.view.input_shapes, **longer})
        with suppress(VerificationError, MemoryLimitError, MemoryError):
            feeds = noise_inputs(session.inputs, samples=1, seed=self.seed, view=other)
            return feeds, dict(zip(session.output_names, session.run(feeds), strict=True))
        return None

    def _require_shapes(self, names: list[str], expected: list[Array], outputs: list[Array]) -> None:
        """Refuse outputs of other shapes than the original's, unless these depend on the values of inputs."""
        for name, a, b in zip(names, expected, outputs, strict=True):
            if a.ndim != b.ndim or (a.shape != b.shape and name not in self._may_differ):
                raise VerificationError(f"output '{name}' had the shape {a.shape} and now has {b.shape}")


def _unmeasured(why: str) -> VerificationResult:
    return VerificationResult(None, (f"fidelity was not measured: {why}",), unmeasured=why)


def _checker_notes(original: ModelLike, model: onnx.ModelProto | str) -> tuple[str, ...]:
    """Return the complaints of onnx's checker; whether shapes fit together is left to onnxruntime, which runs next."""
    problem = checker_problem(model)
    if not problem:
        return ()
    if checker_problem(original):
        return (f"onnx.checker rejects the folded model as it does the original: {problem}",)
    broken = checker_problem(model, full_check=False)
    if broken:
        raise VerificationError(f"onnx.checker rejects the folded model: {broken}")
    return (f"onnx's strict shape inference rejects the folded model, onnxruntime alone decides: {problem}",)
