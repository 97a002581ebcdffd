"""The data path, from a model to a folded one."""

import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from onnxfold.budget.memory_need import MemoryNeed
from onnxfold.channels import FoldGroup
from onnxfold.config import DEFAULT_CACHE, INT8, NOTHING, FoldConfig
from onnxfold.config.checks import known_keywords
from onnxfold.fidelity.comparison import compare
from onnxfold.folders import ModelFolder, folder_of
from onnxfold.folding.before_fold import BeforeFold
from onnxfold.folding.choose_inputs import ChosenInputs
from onnxfold.folding.criteria import require_fidelity
from onnxfold.folding.drop_blocks import drop_blocks
from onnxfold.folding.fold_lossless import require_lossless
from onnxfold.folding.fold_result import FoldResult, files_read
from onnxfold.folding.fold_task import check_request, open_task
from onnxfold.folding.joined_inputs import inputs_for
from onnxfold.folding.joined_model import JoinedModel, without_zero_blocks
from onnxfold.folding.merge_map import merge_arrays
from onnxfold.folding.trainable import to_torch
from onnxfold.folding.tune_norms import tuned
from onnxfold.folding.verify_written import verify_written
from onnxfold.folding.way import find_way
from onnxfold.folding.write_report import write_report
from onnxfold.folding.written_model import written_model
from onnxfold.graph.load import ModelLike, blames_broken_files
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.arrays import load_arrays
from onnxfold.inspection import Inspection, inspect_model, measure
from onnxfold.machine.memory import limited_to
from onnxfold.progress import Progress, silent

__all__ = [
    "FoldResult", "Inspection", "compare", "fold", "inspect", "inspect_model", "load_arrays", "measure", "to_torch",
]  # fmt: skip


@known_keywords
def fold(
    model: ModelLike,
    sparsity: float | None = None,
    *,
    channel_ratio: float | None = None,
    ratios: Mapping[str, float] = NOTHING,
    method: str = "fold-ls",
    cluster: str | None = None,
    repair: str | None = None,
    allocation: str = "global",
    max_params: int | str | None = None,
    max_macs: int | str | None = None,
    max_ram: int | str | None = None,
    max_flash: int | str | None = None,
    max_latency: float | str | None = None,
    tolerance: float = 5.0,
    latency_table: str | Path | Mapping[str, Any] | None = None,
    device: str | None = None,
    min_fidelity: float | None = None,
    data: str | Path | Mapping[str, Array] | None = None,
    max_drop: float | None = None,
    inputs: str = "auto",
    samples: int | None = None,
    input_seconds: float | None = None,
    input_steps: Sequence[int] = (),
    calibration: str | Path | Mapping[str, Array] | None = None,
    tokenizer: str | Path | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    channels: str = "rgb",
    round_to: int | str = "auto",
    objective: str = "balanced",
    keep: Sequence[str] = (),
    input_shapes: Mapping[str, Sequence[int]] = NOTHING,
    allow_cache_change: bool = False,
    per_layer_cache: bool = False,
    inside_heads: bool = False,
    drop_blocks: int | str | None = None,
    tune_norms: bool = False,
    lossless: bool = False,
    dtype: str = "keep",
    seed: int = 0,
    verify: bool = True,
    merge_map: bool = False,
    threads: int = 1,
    save_as_external_data: bool = False,
    max_memory: int | str | None = None,
    cache: str | PathLike[str] | None = DEFAULT_CACHE,
    progress: Progress | None = None,
) -> FoldResult:
    """Make a model structurally smaller, without data and without training.

    Parameters
    ----------
    model : path or ModelProto
        The trained model, or the folder that onnxruntime-genai's builder or optimum wrote it to; it is not changed.
    sparsity : float, optional
        Fraction of the weights to remove, in (0, 1). Default 0.5, if no other goal is given.
    channel_ratio, ratios : float, mapping of str to float
        Fraction of the channels to remove from every group, in [0, 1); the same for groups by glob.
    method : str
        'fold-ls', 'fold-ar', 'fold-naive', 'fold-r', 'fold-dir', 'prune-l1', 'prune-l2', 'wanda-sp', 'flap' or 'ifm': a
        clustering, a repair and a kind of inputs; 'slicegpt', which rotates residual streams; or 'shortgpt', which
        drops residual blocks.
    cluster : str, optional
        Replaces the method's clustering: 'elimination', 'kmeans', 'kmeans-heads', 'ward', 'complete', 'average',
        'single', 'spectral', 'greedy', 'ifm', 'top-l1', 'top-l2', 'rotation', 'streams',
        'wanda' or 'flap'.
    repair : str, optional
        Replaces the method's repair: 'none', 'approximate', 'independent', 'recalibrate', 'least-squares' or 'bias'.
    allocation : str
        'global', for the widths that lose least, or 'uniform'.
    max_params, max_macs, max_ram, max_flash : int or str, optional
        Limits of parameters and of multiply-accumulates per sample, such as "1.5M" (K = 1000), and of activation memory
        and flash in bytes, such as "256K" (K = 1024).
    max_latency : float or str, optional
        Longest that a run in onnxruntime may take on this machine: milliseconds, "3.5ms", or "0.6x" of before.
    tolerance : float
        Percent by which a measured latency may be above `max_latency`, and how well it must be known.
    latency_table : path or mapping, optional
        Replaces the measurement: the report of an earlier fold, or its ``latency_table``. The same table gives the same
        bytes.
    device : str, optional
        A device profile, by name or path, that limits RAM and flash.
    min_fidelity : float, optional
        Lowest agreement with the original on held-out inputs, in (0, 1); replaces a sparsity.
    data, max_drop : path or mapping of str to ndarray, float, optional
        Labelled samples, with labels `y`, and the points of top-1 accuracy that may be lost on them, in [0, 100);
        replace a sparsity. A quarter of the samples decides; the network is run on the others, unless `calibration` or
        `inputs` is given: then all samples decide.
    inputs : str
        Inputs to run the network on: 'auto', 'deep-inversion', 'dead-leaves', 'noise', or the path of an .npz file.
    samples, input_seconds, input_steps : int, float, sequence of int
        Number of generated samples, or of images of a folder; time limit of generating them; inversion steps per batch,
        which repeat an earlier inversion.
    calibration : path or mapping of str to ndarray, optional
        Unlabeled samples by input name, samples along axis 0, instead of generated inputs; a folder of JPEG and PNG
        files, brought to the input's size (extra ``images``); or, for a language model, a .txt file (extra ``text``).
    tokenizer : path, optional
        The ``tokenizer.json`` of a language model; by default, the one beside the model, if there is one.
    mean, std : float or sequence of float, optional
        Mean and standard deviation of the pixels of a folder, one or one per channel. Numbers up to 1 are for pixels
        from 0 to 1, larger ones for pixels from 0 to 255.
    channels : str
        The order of channels that the model takes, and that mean and std are in: 'rgb', or 'bgr' as OpenCV reads.
    round_to : int or 'auto'
        Widths are multiples of this. 'auto': of what a runtime computes fast, by global allocation without a limit of
        memory; else of 1.
    objective : str
        What accuracy is traded against by global allocation: 'balanced', 'weights' or 'macs'.
    keep : sequence of str
        Groups with a node that matches one of these globs keep all channels.
    input_shapes : mapping of str to sequence of int
        Sizes of free input dimensions.
    allow_cache_change : bool
        Whether heads of keys and values that a language model keeps in caches may go, equally many in every layer: the
        shapes of these inputs and outputs change, and the configurations of a folder.
    per_layer_cache : bool
        Whether layers may keep different numbers of them; needs `allow_cache_change`.
    inside_heads : bool
        Whether heads of attention stay, and dimensions between values and outputs go instead, as many of every head.
    drop_blocks : int or 'auto', optional
        Residual blocks to drop whole before the fold, those that change their stream least; alone it is all that is
        done. 'auto': attention or feed-forward branches, as many as cost less than channels of the same weight. Blocks
        with caches go only with `allow_cache_change`; the layers that stay are numbered anew.
    tune_norms : bool
        Whether scales and biases of norms are trained after the fold, without labels: to answer as the original does on
        the inputs of the fold. They are kept only if answers on held-out inputs come closer. Needs torch.
    lossless : bool
        Whether only what changes no output goes, whatever the method: weights that are stored twice (as they are or, of
        tables of words, turned), dead channels and exact duplicates of channels. A model without any is copied.
    dtype : str
        Types of the result: 'keep', the model's own, or 'int8', QDQ ONNX with int8 weights and uint8 activations,
        calibrated on the inputs of the fold. With 'int8', `sparsity` may be 0: quantise only.
    seed : int
        Seed of all random numbers: the same input, options and seed give the same bytes on one machine.
    verify : bool
        Whether to run the result in onnxruntime and to measure its fidelity and its latency.
    merge_map : bool
        Whether to keep every matrix of the fold for ``.save_merge_map``; ``.report.merge_map`` always tells which
        channels became one.
    threads : int
        Threads inside an operator, wherever latency is measured in onnxruntime.
    save_as_external_data : bool
        Whether ``.save`` writes the weights to a file beside the model.
    max_memory : int or str, optional
        Memory limit in bytes, such as "2G". Default: three quarters of the machine's or the container's memory.
    cache : str or path, optional
        Folder where generated inputs are kept for the next fold of the model: 'default' for the user's cache folder,
        'none' or None for none. It changes no result.
    progress : callable, optional
        Called as ``progress(text, steps_done, steps)``; `steps` is 0 if they are not counted.

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
    config = FoldConfig(**{name: value for name, value in locals().items() if name not in ("model", "progress")})
    check_request(config)
    return fold_request(model, config, progress or silent)


def fold_request(
    model: ModelLike,
    config: FoldConfig,
    progress: Progress = silent,
    *,
    run_on: ChosenInputs | None = None,
    measures_latency: bool = True,
    networks: JoinedModel | None = None,
) -> FoldResult:
    """Fold a model as a checked request says; what many folds of a model share may be given.

    Parameters
    ----------
    model, config, progress
        As :func:`fold` takes them; options by name are a FoldConfig.
    run_on : ChosenInputs, optional
        What :func:`onnxfold.folding.shared_inputs.prepare_inputs` returned for a request with the same model, seed and
        inputs; chosen anew if not given. It changes no result.
    measures_latency : bool
        Whether the check of the result also times both models.
    networks : JoinedModel, optional
        The networks that `model` is made of.
    """
    folder = folder_of(model)
    given = model if folder is None else folder.model
    return _fold(given, folder, config, progress, run_on, networks, measures_latency=measures_latency)


@blames_broken_files
def _fold(
    model: ModelLike, folder: ModelFolder | None, config: FoldConfig, tell: Progress, run_on: ChosenInputs | None,
    networks: JoinedModel | None, *, measures_latency: bool,
) -> FoldResult:  # fmt: skip
    """Fold a model, which lies in a folder perhaps: the steps of the data path."""
    start = time.perf_counter()
    with limited_to(config.max_memory):
        task = open_task(model, config, tell, networks=networks, shared_inputs=run_on)
        reads = files_read(model, config, folder)
        dropped = drop_blocks(task)
        before = BeforeFold.of(dropped)
        way = find_way(
            dropped.task, may_keep=bool(dropped.blocks or task.opened.shared), need_of=_need_in(config.dtype)
        )
        data = dropped.inputs or inputs_for(way.task, needed=way.needs_inputs)
        folded = without_zero_blocks(way.folded(data), networks)
        folded = tuned(folded, task.reference, data, config, tell)
        written = written_model(folded, data, config, tell)
        checked = verify_written(task, written, dropped.names, measures_latency=measures_latency)
        if config.lossless and config.verify:
            require_lossless(checked, written.view)
        if written.inputs is not None and written.inputs.is_drawn:  # others differ in kind from those of the check
            require_fidelity(config.min_fidelity, checked.fidelity)
    folder, told = before.told_to(folder, written.view)
    seconds = time.perf_counter() - start
    report = write_report(before, folded, written, checked, (*data.notes, *folded.notes, *told), seconds)
    return FoldResult(
        written.view, report, inputs=written.inputs, reads=reads, folder=folder,
        external_data=config.save_as_external_data or (folder is not None and folder.has_weight_files),
        merge_map=merge_arrays(folded.graphs) if config.merge_map else None,
    )  # fmt: skip


def _need_in(dtype: str) -> Callable[[GraphView], MemoryNeed]:
    """Return a function that says what a model needs on a board, quantised where that is asked for."""

    def need(view: GraphView) -> MemoryNeed:
        from onnxfold.export.firmware.need import need_of  # the exporters take a second to import

        return need_of(view, dtype if dtype == INT8 else "float32")

    return need


@known_keywords
def inspect(
    model: ModelLike,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    allow_cache_change: bool = False,
    per_layer_cache: bool = False,
    inside_heads: bool = False,
) -> list[FoldGroup]:
    """Return the fold groups of a model.

    Parameters
    ----------
    model : path or ModelProto
        The model, or the folder of a language model; it is not changed.
    input_shapes : mapping of str to sequence of int, optional
        Sizes of free input dimensions.
    allow_cache_change, per_layer_cache, inside_heads : bool
        As of :func:`fold`.

    Returns
    -------
    list of FoldGroup
        In the order of their first producer: channels that may be merged with each other, with ``.name`` (the first
        producing node), ``.size`` (channels) and ``.members`` (weight axes).

    Raises
    ------
    ConfigError
        If `input_shapes` do not fit the model, or an option makes no sense.
    ModelLoadError, UnsupportedModelError
        If the model cannot be read, or is not supported.

    Examples
    --------
    >>> from importlib.resources import files
    >>> import onnxfold
    >>> [(group.name, group.size) for group in onnxfold.inspect(files("onnxfold.data") / "lenet5.onnx")]
    [('/conv1/Conv', 6), ('/conv2/Conv', 16), ('/fc1/Gemm', 120), ('/fc2/Gemm', 84)]
    """
    return inspect_model(
        model,
        input_shapes=input_shapes,
        allow_cache_change=allow_cache_change,
        per_layer_cache=per_layer_cache,
        inside_heads=inside_heads,
    ).groups
