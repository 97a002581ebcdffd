"""The model as it is written: the folded one, or what quantisation makes of it; and its check."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnxfold.config import FoldConfig
from onnxfold.fidelity.held_out import Texts
from onnxfold.fidelity.verify import Verification, VerificationResult
from onnxfold.files import Cache
from onnxfold.folding.fold_model import FoldedModel
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.graph.files.save import file_bytes
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.progress import Progress
from onnxfold.quantize.block_weights import requantize_blocks
from onnxfold.quantize.quantize import quantize_int8
from onnxfold.report import ModelSize, QuantizationRecord


@dataclass(frozen=True, eq=False)
class WrittenModel:
    """A model that is ready to be checked and written."""

    view: GraphView
    size: ModelSize  # what it costs; weights and MACs are those of the folded model, before quantisation
    inputs: ModelInputs | None  # what the network was run on, to fold it or to quantise it
    quantization: QuantizationRecord | None = None  # how it was quantised; None where it keeps its types
    notes: tuple[str, ...] = ()  # what a user should know of it


def written_model(folded: FoldedModel, data: ChosenInputs, config: FoldConfig, progress: Progress) -> WrittenModel:
    """Return a folded model in the requested types."""
    if not config.quantizes:
        return _restore_blocks(folded) if folded.blocks else WrittenModel(folded.view, folded.size, folded.inputs)
    inputs = folded.inputs or data.inputs
    assert inputs is not None, "a request that quantises runs the network"
    made = quantize_int8(folded.view, None if inputs.are_tokens else inputs.batches, progress)
    size = replace(folded.size, size_bytes=file_bytes(made.view))
    record = QuantizationRecord(config.dtype, made.weights, made.float_weights, folded.size.size_bytes)
    return WrittenModel(made.view, size, inputs, record, made.notes)


def _restore_blocks(folded: FoldedModel) -> WrittenModel:
    """Return a model whose weights of few bits are stored as such again."""
    view = folded.view.copy()
    done = requantize_blocks(view, folded.blocks)
    size = replace(folded.size, size_bytes=file_bytes(view))
    kinds = sorted({f"{block.kind.bits} bits in blocks of {block.kind.block_size}" for block in folded.blocks})
    note = f"{done} weights of {' and '.join(kinds)} were folded as numbers, and are stored as before"
    return WrittenModel(view, size, folded.inputs, notes=(note,))


def verify_written(
    task: FoldTask, written: WrittenModel, renamed: Mapping[str, str], *, measures_latency: bool
) -> VerificationResult:
    """Check a result in onnxruntime; without a wish for it nothing is known."""
    config = task.config
    if not config.verify:
        return VerificationResult(None)
    return Verification(
        task.reference, written.view, config.seed, task.progress,
        threads=config.threads if measures_latency else None,
        samples=written.inputs.held_out if written.inputs is not None else (), renamed=renamed,
        texts=Texts(tokenizer=config.tokenizer, cache=Cache(config.cache)),
    ).run()  # fmt: skip
