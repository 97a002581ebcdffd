"""The check of a model that is ready to be written, where it is wanted."""

from collections.abc import Mapping

from onnxfold.fidelity.held_out import Texts
from onnxfold.fidelity.verify import Verification, VerificationResult
from onnxfold.files import Cache
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.written_model import WrittenModel


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
