"""The fold of all graphs of a model to the widths of a request."""

from dataclasses import dataclass, replace
from itertools import islice

from onnxfold._version import __version__
from onnxfold.budget.width_request import WidthRequest
from onnxfold.config import FoldConfig
from onnxfold.folding.one_graph import fold_graph
from onnxfold.folding.open_model import stored_size
from onnxfold.folding.prepare import Folded, PreparedModel
from onnxfold.graph.files.provenance import add_run
from onnxfold.graph.files.save import file_bytes
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.tokens.token_plan import size_of
from onnxfold.progress import Progress
from onnxfold.quantize.integers import StoredNumbers
from onnxfold.quantize.quantize import quantize_int8
from onnxfold.report import AccuracyRecord, ModelSize, QuantizationRecord


@dataclass(frozen=True)
class Decision:
    """The measurements that decided how far a fold goes."""

    notes: tuple[str, ...] = ()
    accuracy: AccuracyRecord | None = None  # accuracies, where labels judged


@dataclass(frozen=True, eq=False)
class WrittenModel:
    """A model that is ready to be checked and written."""

    view: GraphView
    size: ModelSize  # what it costs; weights and MACs are those of the folded model, before quantisation
    inputs: ModelInputs | None  # what the network was run on, to fold it or to quantise it
    quantization: QuantizationRecord | None = None  # how it was quantised; None where it keeps its types
    notes: tuple[str, ...] = ()  # what a user should know of it


@dataclass(frozen=True, eq=False)
class FoldedModel:
    """A folded model, and the fold of each of its graphs."""

    view: GraphView  # the folded main graph, bodies written back
    request: WidthRequest  # what the widths had to satisfy
    widths: list[int]  # one width per group of the request
    graphs: list[Folded]  # what was done to each graph, outer ones first
    inputs: ModelInputs | None  # what the main graph was run on
    size: ModelSize
    config: FoldConfig  # the request, in the form that gives the same result at any speed of the machine
    stored: StoredNumbers | None = None  # what the file holds in few bits
    decision: Decision = Decision()

    def written(self, inputs: ModelInputs | None, config: FoldConfig, progress: Progress) -> WrittenModel:
        """Return the model in the requested types; `inputs` are those of the request, where the fold needed none."""
        if not config.quantizes:
            if not self.stored:
                return WrittenModel(self.view, self.size, self.inputs)
            view = self.view.copy()
            note = self.stored.store_again(view)
            return WrittenModel(view, replace(self.size, size_bytes=file_bytes(view)), self.inputs, notes=(note,))
        inputs = self.inputs or inputs
        assert inputs is not None, "a request that quantises runs the network"
        made = quantize_int8(self.view, None if inputs.are_tokens else inputs.walked(self.view), progress)
        size = replace(self.size, size_bytes=file_bytes(made.view))
        record = QuantizationRecord(config.dtype, made.weights, made.float_weights, self.size.size_bytes)
        return WrittenModel(made.view, size, inputs, record, made.notes)


def fold_model(prepared: PreparedModel, request: WidthRequest, config: FoldConfig, progress: Progress) -> FoldedModel:
    """Choose widths, fold every graph in place, and note the run in the metadata of the model."""
    request = request.add_lossless(prepared.lossless)
    widths = request.choose(prepared.losses)
    rest = iter(widths)
    parts = [list(islice(rest, len(graph.groups))) for graph in prepared.graphs]
    graphs: list[Folded] = []
    # Bodies before the graph that holds them.
    for graph, part in zip(reversed(prepared.graphs), reversed(parts), strict=True):
        graphs.insert(0, fold_graph(graph, part, progress))
        if graph.scope.body is not None:
            graph.scope.body.close()
    opened = prepared.opened
    view, size = opened.view, size_of(opened.view)
    if size.macs is None and opened.size.macs is not None:
        size = stored_size(view, 0)
    sparsity = opened.size.sparsity_of(size)
    add_run(view.model, {"version": __version__, "config": config.to_dict(), "sparsity": round(sparsity, 6)})
    size = replace(size, size_bytes=file_bytes(view), macs_per=opened.size.macs_per)  # with the note of the run
    return FoldedModel(view, request, widths, graphs, prepared.graphs[0].inputs, size, config, opened.stored)
