"""The way the data takes, from a model to a folded one."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from itertools import accumulate
from os import PathLike
from pathlib import Path

from onnx import ModelProto

from onnxfold._version import __version__
from onnxfold.budget.costs.size import measure, model_size
from onnxfold.budget.width_request import WidthRequest, requested_limits, width_request
from onnxfold.channels import FoldGroup
from onnxfold.config import NOTHING, FoldConfig
from onnxfold.config.checks import known_keywords
from onnxfold.errors import ConfigError, NothingToFoldError, VerificationError
from onnxfold.fidelity.comparison import compare
from onnxfold.fidelity.verify import verify
from onnxfold.files import Read
from onnxfold.folding.fidelity_search import LEAST, confidence, fold_while_faithful, worst
from onnxfold.folding.fold_result import FoldResult
from onnxfold.folding.methods import Method, find_method
from onnxfold.folding.one_graph import ScopeFold
from onnxfold.folding.scopes import Scope, all_refusals, open_scopes, require_finite_channels, require_groups
from onnxfold.graph.finite import require_no_nan
from onnxfold.graph.footprint import Footprint, feed_shapes
from onnxfold.graph.load import ModelLike, blames_broken_files, load
from onnxfold.graph.model_files import claims_on
from onnxfold.graph.provenance import add_run
from onnxfold.graph.session import sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.trial_run import require_trial_run
from onnxfold.graph.view import GraphView
from onnxfold.inputs.arrays import load_arrays, require_file
from onnxfold.inputs.model_inputs import ModelInputs, model_inputs
from onnxfold.inspection import Inspection, inspect_model
from onnxfold.machine.memory import limited_to
from onnxfold.progress import Progress, silent
from onnxfold.report import FoldReport, GroupRecord, InputRecord, ModelSize, PassRecord, Refusal, joined
from onnxfold.statistics.observe import observe

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
    start = time.perf_counter()
    chosen = find_method(config.method, cluster=config.cluster, repair=config.repair)
    requested_limits(config)  # bad numbers are told before any work
    if isinstance(config.calibration, str | PathLike):
        require_file(config.calibration)  # whether it will be used or not
    tell = progress or silent
    with limited_to(config.max_memory):
        if config.min_fidelity is not None:
            result = _fold_until(model, config, chosen, tell)
        else:
            result = _fold_once(model, config, chosen, tell)
        if config.verify:
            _verify(result, model, config, tell)
    result.report.seconds = time.perf_counter() - start
    return result


def _fold_once(
    model: ModelLike, config: FoldConfig, method: Method, tell: Progress, inputs: ModelInputs | None = None
) -> FoldResult:
    """Load, normalise, choose widths, fold."""
    view, before, scopes = _open(model, config, tell)
    request = _request(scopes, config, method, before)
    notes = list(view.notes)
    from_curves = request.widths is None
    if inputs is None and (from_curves or method.needs_inputs):
        inputs = _inputs(model, scopes, config, method, tell, notes)
    elif inputs is None and config.about_inputs:
        notes.append(
            f"this request does not run the network, so these options change nothing: {', '.join(config.about_inputs)}"
        )
    config = _as_run(config, inputs)
    folds = [ScopeFold(s, method, None if s.body is not None else inputs, config.seed, tell) for s in scopes]
    widths = request.choose(lambda: [candidates.errors for fold in folds for candidates in fold.curves])
    _check_anything_folds(request.groups, widths, config)

    records: list[PassRecord] = []
    groups: list[GroupRecord] = []
    # Bodies before the graph that holds them.
    for fold, part in reversed(list(zip(folds, _per_fold(folds, widths), strict=True))):
        records = fold.scope.records + fold.fold(part, from_curves=from_curves) + records
        groups = fold.records(part) + groups
        if fold.scope.body is not None:
            fold.scope.body.close()
    report = _report(config, method, before, model_size(view), groups, all_refusals(scopes), records)
    report.notes += request.notes(widths, report.sparsity) + report.fallbacks + notes
    if request.by_default:
        report.requested += f", sparsity {request.sparsity:g} by default"
    report.diagnostics = joined([f.diagnostics for f in folds])
    report.model = str(model) if isinstance(model, str | Path) else ""
    if inputs is not None:
        report.inputs = InputRecord(inputs.kind, inputs.samples, inputs.reason, inputs.steps)
        report.notes += inputs.notes
    add_run(view.model, {"version": __version__, "config": report.config, "sparsity": round(report.sparsity, 6)})
    return FoldResult(
        view, report, external_data=config.save_as_external_data, inputs=inputs, reads=_reads(model, config)
    )


def _reads(model: ModelLike, config: FoldConfig) -> Callable[[], Iterator[Read]]:
    """Return what lists the files that a fold reads; their paths hold even if the working folder changes."""
    model = model if isinstance(model, ModelProto) else Path(model).absolute()
    data = {"calibration": config.calibration, "the device": config.device}
    files = {
        role: Path(given).absolute() for role, given in data.items()
        if isinstance(given, str | Path) and (role != "the device" or str(given).endswith(".toml"))
    }  # fmt: skip
    return partial(claims_on, [model], files)


def _verify(result: FoldResult, model: ModelLike, config: FoldConfig, tell: Progress) -> None:
    """Check a result beside the original, and note in its report how close it is."""
    tell("verify in onnxruntime", 0, 0)
    found = verify(model, result.view, seed=config.seed)
    result.report.fidelity = found.fidelity
    result.report.notes += found.notes


def _open(model: ModelLike, config: FoldConfig, tell: Progress) -> tuple[GraphView, ModelSize, list[Scope]]:
    tell("load", 0, 0)
    view = load(model, config.input_shapes)
    before = model_size(view)
    tell("check weights", 0, 0)
    has_infinite = require_no_nan(view)
    tell("find fold groups", 0, 0)
    scopes = open_scopes(view)
    for scope in scopes:
        require_finite_channels(scope, everywhere=has_infinite)
    require_groups(scopes)
    return view, before, scopes


def _fold_until(model: ModelLike, config: FoldConfig, method: Method, tell: Progress) -> FoldResult:
    """Fold as far as the fidelity on held-out inputs allows."""
    _, before, scopes = _open(model, config, tell)
    request = _request(scopes, replace(config, sparsity=LEAST, min_fidelity=None), method, before)
    if len(request.fixed) == len(request.groups):
        raise ConfigError("min_fidelity decides how far to fold, and ratios and keep give the widths of all groups")
    notes: list[str] = []
    inputs = _inputs(model, scopes, config, method, tell, notes)
    if inputs is None:
        raise VerificationError(notes[0])
    config = _as_run(config, inputs)
    seen, held_out = inputs.split()
    result, sparsity, found = fold_while_faithful(
        model,
        config.min_fidelity or 0.0,
        held_out.batches,
        lambda s: _fold_once(model, replace(config, sparsity=s, min_fidelity=None), method, tell, seen),
    )
    result.report.requested = config.request
    result.report.config = config.to_dict()
    result.report.notes.append(
        f"{worst(found):.1%} fidelity{confidence(found)} on {held_out.samples} held-out inputs at sparsity "
        f"{sparsity:.3f}"
    )
    return result


def _inputs(
    model: ModelLike, scopes: list[Scope], config: FoldConfig, method: Method, tell: Progress, notes: list[str]
) -> ModelInputs | None:
    """Return what the main graph is run on, None where it cannot be run."""
    kind = config.inputs if config.inputs != "auto" else method.inputs
    view = scopes[0].view
    try:
        inputs = model_inputs(
            view,
            kind,
            config.calibration,
            samples=config.samples,
            seconds=config.input_seconds,
            steps=config.input_steps,
            seed=config.seed,
            progress=tell,
        )
        _require_memory(model, view, inputs)
        observe(view, (), [inputs.batches[0]], match=False)  # does it run at all?
    except (VerificationError, MemoryError) as error:
        if config.calibration is not None:
            raise
        notes.append(f"the network cannot be run on generated inputs, so it was repaired from its weights: {error}")
        return None
    return inputs


def _require_memory(model: ModelLike, view: GraphView, inputs: ModelInputs) -> None:
    """Refuse inputs on which the activations of the network, and of its fold beside it, do not fit into memory."""
    footprint = Footprint.of(view, feed_shapes(inputs.batches[0]))
    first = sample_count(inputs.batches[0])
    footprint.require(f"running the network on {inputs.samples} samples", times=2 * inputs.samples / first)
    if footprint.unknown:
        # As it was given: bodies of the view are open, and its weights partly theirs.
        require_trial_run(load(model), inputs.batches, "running the network")


def _as_run(config: FoldConfig, inputs: ModelInputs | None) -> FoldConfig:
    """Return the request that comes to the same result whatever the clock says."""
    return replace(config, input_steps=inputs.steps) if inputs is not None and inputs.cut else config


def _per_fold(folds: list[ScopeFold], widths: list[int]) -> list[list[int]]:
    ends = list(accumulate(len(fold.groups) for fold in folds))
    return [widths[end - len(fold.groups) : end] for fold, end in zip(folds, ends, strict=True)]


def _request(scopes: list[Scope], config: FoldConfig, method: Method, before: ModelSize) -> WidthRequest:
    """Check the request before anything is run."""
    graphs = [(scope.view, scope.analysis.groups) for scope in scopes]
    request = width_request(graphs, config, before.parameters, adds_biases=method.repair == "least-squares")
    if request.widths is not None:
        _check_anything_folds(request.groups, request.widths, config)
    return request


def _check_anything_folds(groups: list[FoldGroup], widths: list[int], config: FoldConfig) -> None:
    if config.channel_ratio == 0.0 or any(w < g.size for w, g in zip(widths, groups, strict=True)):
        return
    within = " and is within its limits already" if config.has_limits else "; ask for more"
    raise NothingToFoldError(
        f"nothing to fold: with this request the model keeps the widths of all its {len(groups)} fold groups{within}"
    )


def _report(
    config: FoldConfig,
    method: Method,
    before: ModelSize,
    after: ModelSize,
    groups: list[GroupRecord],
    refusals: list[Refusal],
    records: list[PassRecord],
) -> FoldReport:
    return FoldReport(
        method=config.method,
        allocation=config.allocation,
        requested=config.request,
        before=before,
        after=after,
        groups=groups,
        refusals=refusals,
        passes=records,
        config=config.to_dict(),
        version=__version__,
        versions={name: metadata.version(name) for name in ("numpy", "onnx", "onnxruntime")},
        cluster=method.cluster,
        repair=method.repair,
    )


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
