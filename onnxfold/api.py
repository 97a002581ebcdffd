"""The data path, from a model to a folded one."""

import time
from functools import partial
from typing import Unpack

from onnxfold.budget.devices import MemoryNeed
from onnxfold.config import INT8, OPTIONS, FoldConfig
from onnxfold.config.fold_options import FoldOptions
from onnxfold.config.signatures import takes_options
from onnxfold.fidelity.comparison import compare
from onnxfold.folders import model_file
from onnxfold.folding.after.refine import refine_fold
from onnxfold.folding.after.trainable import to_torch
from onnxfold.folding.blocks.drop_blocks import drop_blocks
from onnxfold.folding.fold_result import FoldResult, files_read
from onnxfold.folding.fold_task import check_request, open_task
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.folding.networks.joined_model import JoinedModel, remove_zero_blocks
from onnxfold.folding.search.criteria import require_fidelity, require_lossless
from onnxfold.folding.trim_vocabulary import trim_vocabulary
from onnxfold.folding.way import find_way
from onnxfold.folding.write_report import BeforeFold, write_report
from onnxfold.graph.files.load import ModelLike, blame_broken_file
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.cache_heads import cache_heads
from onnxfold.inspection import Inspection, inspect, inspect_model, measure
from onnxfold.machine.memory import memory_limit
from onnxfold.progress import Progress, silent

__all__ = ["FoldResult", "Inspection", "compare", "fold", "inspect", "inspect_model", "measure", "to_torch"]


@takes_options(OPTIONS)
def fold(
    model: ModelLike, sparsity: float | None = None, *, progress: Progress | None = None, **options: Unpack[FoldOptions]
) -> FoldResult:
    """Make a model structurally smaller, without data and without training.

    Parameters
    ----------
    model : path or ModelProto
        The trained model, or the folder that onnxruntime-genai's builder or optimum wrote it to; it is not changed.
    sparsity : float, optional
        Fraction of the weights to remove, in (0, 1). Without it and any other goal, the largest up to 0.5 at which the
        lower end of the agreement with the original stays at 95 %.
    progress : callable, optional
        Called as ``progress(text, steps_done, steps)``; `steps` is 0 if they are not counted.
    **options
        Those of :class:`onnxfold.FoldConfig`, by name.

    Returns
    -------
    FoldResult
        With ``.model`` (a ModelProto), ``.report`` and ``.save(path)``, which writes a folder where a folder was given.

    Raises
    ------
    ConfigError
        If an option makes no sense. For a wrong type or an unknown option it is also a TypeError.
    ModelLoadError, UnsupportedModelError
        If the model cannot be read, or is not supported.
    NonFiniteError
        If a weight is NaN, or infinite in a fold group.
    NothingToFoldError
        If no channel can be folded.
    BudgetError
        If the sparsity or a limit cannot be reached.
    NotMeasurableError
        If latency is limited, and varies too much on this machine.
    VerificationError
        If the result does not load or run.

    Examples
    --------
    >>> from importlib.resources import files
    >>> import onnxfold
    >>> model = files("onnxfold.data") / "lenet5.onnx"
    >>> result = onnxfold.fold(model, sparsity=0.5, method="fold-ar", allocation="uniform")
    >>> round(result.report.sparsity, 2)
    0.5
    >>> path = result.save("folded.onnx")  # doctest: +SKIP
    """
    config = FoldConfig(sparsity=sparsity, **options)
    check_request(config)
    return fold_request(model, config, progress or silent)


def fold_request(
    model: ModelLike, config: FoldConfig, progress: Progress = silent, *, run_on: ChosenInputs | None = None,
    measures_latency: bool = True, networks: JoinedModel | None = None,
) -> FoldResult:  # fmt: skip
    """Fold a model, which may be made of networks, as a checked request says.

    Inputs that many folds of a model share may be passed on, as
    :func:`onnxfold.folding.inputs.choose_inputs.prepare_inputs` returned them; they change no result.
    """
    start = time.perf_counter()
    with blame_broken_file(model_file(model)), memory_limit(config.max_memory):
        file = trim_vocabulary(model, config, progress)
        task = open_task(file.model, config, progress, networks=networks, shared_inputs=run_on, size=file.size)
        reads = files_read(file.source, config, file.folder)
        dropped = drop_blocks(task)
        heads = cache_heads(dropped.task.opened.view) if config.allow_cache_change else None
        before = BeforeFold(start, file, dropped, heads)
        may_keep = bool(dropped.blocks or task.opened.shared or file.size)
        way = find_way(dropped.task, may_keep=may_keep, need_of=partial(_need_of, config.dtype))
        data = dropped.inputs or way.task.inputs(needed=way.needs_inputs)
        folded = remove_zero_blocks(way.run_fold(data), networks)
        refinement = refine_fold(folded.view, task.reference, data, config, progress)
        written = folded.written(data.inputs, config, progress)
        checked = task.verify(written, dropped.names, measures_latency=measures_latency)
        if config.lossless and config.verify:
            require_lossless(checked, written.view)
        # Inputs that are not drawn differ in kind from those of the check.
        if written.inputs is not None and written.inputs.facts.is_drawn:
            require_fidelity(config.min_fidelity, checked.fidelity)
        written.view.end_runs()
        folder, cache_notes = before.update_folder(written.view)
        notes = (*file.notes, *data.notes, *folded.decision.notes, *cache_notes)
        report = write_report(before, folded, refinement, written, checked, notes)
        return FoldResult(
            written, report, reads=reads, folder=folder,
            external_data=config.save_as_external_data or (folder is not None and folder.has_weight_files),
        )  # fmt: skip


def _need_of(dtype: str, view: GraphView) -> MemoryNeed:
    """Return the need of a model on a board, quantised where `dtype` says so."""
    from onnxfold.export.firmware.need import need_of  # the exporters take a second to import

    return need_of(view, dtype if dtype == INT8 else "float32")
