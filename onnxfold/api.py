"""The data path, from a model to a folded one."""

import time
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from onnxfold.budget.costs.size import measure
from onnxfold.budget.width_request import requested_limits
from onnxfold.channels import FoldGroup
from onnxfold.config import NOTHING, FoldConfig
from onnxfold.config.checks import known_keywords
from onnxfold.fidelity.comparison import compare
from onnxfold.fidelity.verify import VerificationResult
from onnxfold.fidelity.verify import verify as verify_model
from onnxfold.folding.choose_inputs import choose_inputs
from onnxfold.folding.fidelity_search import fold_while_faithful, smallest_request
from onnxfold.folding.fold_model import fold_model, model_candidates, request_widths
from onnxfold.folding.fold_result import FoldResult, files_read
from onnxfold.folding.methods import find_method
from onnxfold.folding.open_model import open_model
from onnxfold.folding.prepare import prepare
from onnxfold.folding.write_report import write_report
from onnxfold.graph.load import ModelLike, blames_broken_files
from onnxfold.graph.tensors import Array
from onnxfold.inputs.arrays import load_arrays, require_file
from onnxfold.inspection import Inspection, inspect_model
from onnxfold.machine.memory import limited_to
from onnxfold.progress import Progress, silent

__all__ = ["FoldResult", "Inspection", "compare", "fold", "inspect", "inspect_model", "load_arrays", "measure"]


@known_keywords
@blames_broken_files
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
    device: str | None = None,
    min_fidelity: float | None = None,
    inputs: str = "auto",
    samples: int | None = None,
    input_seconds: float | None = None,
    input_steps: Sequence[int] = (),
    calibration: str | Path | Mapping[str, Array] | None = None,
    round_to: int = 1,
    keep: Sequence[str] = (),
    input_shapes: Mapping[str, Sequence[int]] = NOTHING,
    seed: int = 0,
    verify: bool = True,
    save_as_external_data: bool = False,
    max_memory: int | str | None = None,
    progress: Progress | None = None,
) -> FoldResult:
    """Make a model structurally smaller without data and without training.

    Parameters
    ----------
    model : path or ModelProto
        The trained model; left untouched.
    sparsity, channel_ratio, ratios
        Fraction of the weights to remove, in (0, 1); or fraction of the channels of every group, in [0, 1), and of
        groups by glob. Sparsity 0.5 if no goal is given.
    max_params, max_macs, max_ram, max_flash, device, min_fidelity
        Other goals: counts such as "1.5M", bytes such as "256K", a board, the agreement to keep.
    method, cluster, repair, allocation
        How channels are chosen and repaired, by name, and widths: 'global' or 'uniform'.
    inputs, samples, input_seconds, input_steps, calibration
        What the network is run on: a kind of generated inputs, their number, the most seconds to generate them in and
        the steps that repeat an inversion; or arrays by input name.
    round_to, keep, input_shapes, seed
        Multiples of widths, globs of groups to keep, sizes of free dimensions by input, seed of everything random.
    verify, save_as_external_data, max_memory
        Whether to run the result, to write weights beside the model, and the most bytes of memory to use.
    progress : callable, optional
        Called with what is being done, the number of its steps done, and their total (0: not counted).

    All options but `progress` are described one by one in :class:`~onnxfold.config.FoldConfig`.

    Returns
    -------
    FoldResult
        With ``.model``, ``.report`` and ``.save(path)``.

    Raises
    ------
    ConfigError
        If an option makes no sense; of a wrong type, or an unknown one, it is a TypeError, too.
    ModelLoadError, UnsupportedModelError
        If the model cannot be read or worked on.
    NonFiniteError
        If a weight is NaN, or infinite where it holds channels that could be folded.
    NothingToFoldError
        If no channel can be folded.
    BudgetError
        If the sparsity, or a limit, cannot be reached.
    VerificationError
        If the result does not load or run; nothing is written then.
    """
    config = FoldConfig(**{name: value for name, value in locals().items() if name not in ("model", "progress")})
    start, tell, searches = time.perf_counter(), progress or silent, config.min_fidelity is not None
    chosen = find_method(config.method, cluster=config.cluster, repair=config.repair)
    requested_limits(config)  # bad numbers are told before any work
    if isinstance(config.calibration, str | PathLike):
        require_file(config.calibration)  # whether it will be used or not
    with limited_to(config.max_memory):
        opened = open_model(model, config.input_shapes, tell)
        request = smallest_request(opened, config, chosen) if searches else request_widths(opened, config, chosen)
        needed = searches or request.widths is None or chosen.needs_inputs
        data = choose_inputs(opened, config, chosen, tell, needed=needed)
        config = data.repeated_by(config)
        if searches:
            folded, note = fold_while_faithful(opened, request, data, config, chosen, tell)
        else:
            prepared = prepare(opened, chosen, data.inputs, config.seed)
            candidates = model_candidates(prepared, tell) if request.widths is None else None
            folded, note = fold_model(prepared, request, candidates, config, tell), ()
        checked = verify_model(model, folded.view, config.seed, tell) if config.verify else VerificationResult(None)
    report = write_report(opened, folded, config, chosen, checked, (*data.notes, *note), time.perf_counter() - start)
    external, reads = config.save_as_external_data, files_read(model, config)
    return FoldResult(folded.view, report, external_data=external, inputs=folded.inputs, reads=reads)


@known_keywords
def inspect(model: ModelLike, *, input_shapes: Mapping[str, Sequence[int]] | None = None) -> list[FoldGroup]:
    """Return the fold groups of a model.

    Parameters
    ----------
    model : path or ModelProto
        Left untouched.
    input_shapes : mapping of str to sequence of int, optional
        Dimensions to assume for symbolic inputs.
    """
    return inspect_model(model, input_shapes=input_shapes).groups
