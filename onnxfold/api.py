"""The way the data takes, from a model to a folded one."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfold._version import __version__
from onnxfold.budget.allocate import TOLERANCE, fixed_widths, solve_uniform, uniform_widths
from onnxfold.budget.size import measure, model_size
from onnxfold.budget.weights import WeightCost
from onnxfold.channels import ChannelAnalysis, FoldGroup
from onnxfold.cluster.duplicates import find_duplicates
from onnxfold.cluster.plan import FoldPlan, plan_folds
from onnxfold.comparison import compare, load_arrays
from onnxfold.config import FoldConfig
from onnxfold.errors import NothingToFoldError
from onnxfold.graph.load import ModelLike, blames_broken_files, load
from onnxfold.graph.save import save, to_model
from onnxfold.graph.view import GraphView
from onnxfold.inspection import Inspection, inspect_model
from onnxfold.passes.base import Pass, Pipeline
from onnxfold.passes.fold_channels import FoldChannels
from onnxfold.passes.lump_duplicates import LumpDuplicates
from onnxfold.passes.methods import Method, find_method
from onnxfold.passes.normalize import CLEAN_UP
from onnxfold.passes.normalize_batch_norm import NormalizeBatchNorm
from onnxfold.passes.repair_approximate import RepairApproximate
from onnxfold.passes.verify import verify
from onnxfold.progress import Progress, silent
from onnxfold.report import FoldReport, GroupRecord, ModelSize, PassRecord, Refusal
from onnxfold.scope import Scope, all_groups, all_refusals, open_scopes

_PROVENANCE = "onnxfold"

__all__ = ["FoldResult", "Inspection", "compare", "fold", "inspect", "inspect_model", "load_arrays", "measure"]


class FoldResult:
    """A folded model and what was done to it.

    Attributes
    ----------
    report : FoldReport
        Sizes, groups, refusals, fidelity.
    """

    def __init__(self, view: GraphView, report: FoldReport, *, external_data: bool = False) -> None:
        self._view = view
        self._external_data = external_data
        self.report = report

    @property
    def model(self) -> ModelProto:
        """The folded model; raises UnsupportedModelError above 2 GB."""
        return to_model(self._view)

    def save(self, path: str | Path, *, save_as_external_data: bool | None = None) -> Path:
        """Write the folded model; `path` appears complete or not at all.

        Raises
        ------
        ModelSaveError
            If it cannot be written.
        """
        external = self._external_data if save_as_external_data is None else save_as_external_data
        target = Path(path)
        save(self._view, target, external_data=external)
        return target


@blames_broken_files
def fold(
    model: ModelLike, sparsity: float | None = None, *, progress: Progress | None = None, **options: Any
) -> FoldResult:
    """Make a model structurally smaller without data and without training.

    Parameters
    ----------
    model : path or ModelProto
        The trained model; left untouched.
    sparsity : float, optional
        Fraction of the weights to remove, in (0, 1); 0.5 if neither this nor `channel_ratio` is given.
    progress : callable, optional
        Called with what is being done, the number of its steps done, and their total (0: not counted).
    **options
        The other fields of :class:`~onnxfold.config.FoldConfig`: `channel_ratio`, `ratios`, `method`, `allocation`,
        `round_to`, `keep`, `input_shapes`, `seed`, `verify`, `save_as_external_data`.

    Returns
    -------
    FoldResult
        With ``.model``, ``.report`` and ``.save(path)``.

    Raises
    ------
    ConfigError
        If an option makes no sense.
    ModelLoadError, UnsupportedModelError
        If the model cannot be read or worked on.
    NothingToFoldError
        If no channel can be folded.
    BudgetError
        If the sparsity cannot be reached.
    VerificationError
        If the result does not load or run; nothing is written then.
    """
    start = time.perf_counter()
    config = FoldConfig(sparsity=sparsity, **options)
    method = find_method(config.method)
    tell = progress or silent

    tell("load", 0, 0)
    view = load(model, config.input_shapes)
    before = model_size(view)
    tell("find fold groups", 0, 0)
    scopes = open_scopes(view)
    widths = _choose_widths(scopes, config, before.parameters)
    records: list[PassRecord] = []
    groups: list[GroupRecord] = []
    end = len(widths)
    for scope in reversed(scopes):  # bodies before the graph that holds them
        start_of_scope = end - len(scope.analysis.groups)
        done = _fold_scope(scope, widths[start_of_scope:end], method, config, tell)
        records, groups, end = done[0] + records, done[1] + groups, start_of_scope
    after = model_size(view)

    report = _report(config, before, after, groups, all_refusals(scopes), records)
    _write_provenance(view, report)
    if config.verify:
        tell("verify in onnxruntime", 0, 0)
        result = verify(model, view, seed=config.seed)
        report.fidelity = result.fidelity
        report.notes += result.notes
    report.seconds = time.perf_counter() - start
    return FoldResult(view, report, external_data=config.save_as_external_data)


def _fold_scope(
    scope: Scope, widths: list[int], method: Method, config: FoldConfig, tell: Progress
) -> tuple[list[PassRecord], list[GroupRecord]]:
    """Fold one graph: normalise what shrinks, plan, merge, repair, clean up."""
    view, groups = scope.view, scope.analysis.groups
    duplicates = find_duplicates(view, groups, seed=config.seed)
    if method.normalize_rows:
        NormalizeBatchNorm(_shrinking(groups, widths))(view)
    original = view.copy()
    LumpDuplicates(tuple(groups), tuple(duplicates))(original)
    compare_deviation = not method.normalize_rows
    plan = plan_folds(
        original, groups, widths, duplicates, seed=config.seed, with_deviation=compare_deviation, progress=tell
    )
    records = Pipeline(_passes(method, original, plan, scope.analysis), tell)(view).records
    if scope.body is not None:
        scope.body.close()
    rows = [
        GroupRecord(g.name, g.size, w, g.nodes, g.size - int(d.max()) - 1)
        for g, w, d in zip(groups, widths, duplicates, strict=True)
    ]
    return scope.records + list(records), rows


def _passes(method: Method, original: GraphView, plan: FoldPlan, analysis: ChannelAnalysis) -> tuple[Pass, ...]:
    merge: tuple[Pass, ...] = (FoldChannels(plan, tuple(analysis.counts), tuple(analysis.selects)),)
    repair: tuple[Pass, ...] = (RepairApproximate(original, plan),) if method.repair == "approximate" else ()
    return merge + repair + CLEAN_UP.passes


def _choose_widths(scopes: list[Scope], config: FoldConfig, before: int) -> list[int]:
    groups = all_groups(scopes)
    if not groups:
        raise NothingToFoldError(_nothing(all_refusals(scopes)))
    fixed = fixed_widths(groups, config.ratios, config.keep, config.round_to)
    if config.channel_ratio is not None:
        widths = uniform_widths(groups, config.channel_ratio, fixed, config.round_to)
    else:
        cost = WeightCost([(scope.view, scope.analysis.groups) for scope in scopes])
        widths = solve_uniform(groups, cost, before, config.sparsity or 0.0, fixed, config.round_to)
    unchanged = all(w == g.size for w, g in zip(widths, groups, strict=True))
    if unchanged and config.channel_ratio != 0.0:
        raise NothingToFoldError(
            f"nothing to fold: with this request all {len(groups)} fold groups keep their widths; ask for more"
        )
    return widths


def _nothing(refusals: list[Refusal]) -> str:
    if not refusals:
        return "nothing to fold: the model has no Conv, Gemm or MatMul weights that produce channels"
    # That the model's own inputs and outputs stay is true of every model.
    worst = next((r for r in refusals if "it is the model's" not in r.reason), refusals[0])
    return (
        f"nothing to fold: no channel of this model can be merged; a large weight that stays is '{worst.node}' "
        f"({worst.axis}): {worst.reason}"
    )


def _shrinking(groups: list[FoldGroup], widths: list[int]) -> tuple[FoldGroup, ...]:
    return tuple(g for g, w in zip(groups, widths, strict=True) if w < g.size)


def _report(
    config: FoldConfig,
    before: ModelSize,
    after: ModelSize,
    groups: list[GroupRecord],
    refusals: list[Refusal],
    records: list[PassRecord],
) -> FoldReport:
    asked = (
        f"sparsity {config.sparsity:g}" if config.sparsity is not None else f"channel ratio {config.channel_ratio:g}"
    )
    report = FoldReport(
        method=config.method,
        allocation=config.allocation,
        requested=asked,
        before=before,
        after=after,
        groups=groups,
        refusals=refusals,
        passes=records,
        config=config.to_dict(),
        version=__version__,
    )
    if config.sparsity is not None and abs(report.sparsity - config.sparsity) > TOLERANCE:
        report.notes.append(
            f"reached sparsity {report.sparsity:.3f} instead of {config.sparsity:g}: the {len(groups)} widths are "
            "whole numbers, and no common channel ratio comes closer"
        )
    return report


def _write_provenance(view: GraphView, report: FoldReport) -> None:
    entry = {"version": __version__, "config": report.config, "sparsity": round(report.sparsity, 6)}
    for prop in view.model.metadata_props:
        if prop.key == _PROVENANCE:
            entry["previous"] = prop.value
            prop.value = json.dumps(entry, sort_keys=True)
            return
    view.model.metadata_props.add(key=_PROVENANCE, value=json.dumps(entry, sort_keys=True))


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
