"""The report of a fold, written once, when everything is known; and what is noted before."""

import hashlib
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path

from onnxfold._version import __version__
from onnxfold.fidelity.estimate import estimate_agreement, verdict_on
from onnxfold.fidelity.verify import VerificationResult
from onnxfold.folders import ModelFolder, with_changes
from onnxfold.folding.blocks.drop_blocks import Dropped
from onnxfold.folding.fold_model import FoldedModel, WrittenModel
from onnxfold.folding.open_model import all_refusals
from onnxfold.folding.trim_vocabulary import FoldedFile
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.input_scale import has_channels_last
from onnxfold.inputs.images.png_grid import png_grid
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import INVERTED
from onnxfold.inputs.tokens.cache_heads import Heads, cache_heads
from onnxfold.report import FoldReport, RefinementRecord
from onnxfold.report.fold_report import InputRecord
from onnxfold.report.records import MergeMap, join_diagnostics


@dataclass(frozen=True, eq=False)
class BeforeFold:
    """The facts about the model before the fold that the report and the folder of a result need."""

    start: float  # when the work began, by the performance counter
    file: FoldedFile  # the model, as it was given and as it is folded
    dropped: Dropped  # what was dropped, and the model that is left
    heads: Heads | None  # heads in its caches; None where caches stay as they are

    def update_folder(self, after: GraphView) -> tuple[ModelFolder | None, tuple[str, ...]]:
        """Return the folder whose copy states the new sizes of the caches, and notes on them."""
        if self.heads is None:
            return self.file.folder, ()
        return with_changes(self.file.folder, self.heads, cache_heads(after), self.dropped.layers_left)


#: Read and parsed from a file of the library, so once.
_version = cache(metadata.version)
#: Images of a page: so many, in rows of so many, and no more pixels than these on a side of one.
_SHOWN, _COLUMNS, _PIXELS = 24, 12, 64


def write_report(
    before: BeforeFold, folded: FoldedModel, refinement: RefinementRecord | None, written: WrittenModel,
    verified: VerificationResult, notes: Sequence[str],
) -> FoldReport:  # fmt: skip
    """Return the report of a fold."""
    task, config, request, inputs = before.dropped.task, folded.config, folded.request, written.inputs
    opened, method = task.opened, task.method
    diagnostics = join_diagnostics([graph.diagnostics for graph in folded.graphs])
    kind = "" if inputs is None else inputs.kind
    estimate, not_estimated = estimate_agreement(verified.fidelity, verified.samples, kind, diagnostics)
    groups = [record for graph in folded.graphs for record in graph.groups]
    is_lossy = any(record.is_lossy for record in groups)
    closeness, unmeasured = verified.samples or verified.fidelity, verified.unmeasured or "not verified"
    libraries = ["numpy", "onnx", "onnxruntime", "scipy", *(["torch"] if kind == INVERTED or refinement else [])]
    report = FoldReport(
        method=config.method,
        allocation=config.allocation,
        requested=config.request,
        before=opened.size,
        after=written.size,
        groups=groups,
        refusals=all_refusals(opened.scopes),
        passes=[record for graph in folded.graphs for record in graph.passes],
        cluster=method.cluster,
        repair=method.repair,
        inputs=None if inputs is None else InputRecord(inputs.kind, inputs.distinct, inputs.reason, inputs.steps),
        quantization=written.quantization,
        fidelity=verified.fidelity,
        accuracy=folded.decision.accuracy,
        estimate=estimate,
        not_estimated=not_estimated,
        fidelity_on_samples=verified.samples,
        verdict=verdict_on(closeness, unmeasured, estimate=estimate, doubt=not_estimated, is_lossy=is_lossy),
        latency=verified.latency,
        latency_table=config.latency_table if isinstance(config.latency_table, dict) else None,
        config=config.to_dict(),
        seconds=time.perf_counter() - before.start,
        version=__version__,
        model=str(before.file.source) if isinstance(before.file.source, str | Path) else "",
        # Of the libraries that decide the bytes of a result.
        versions={"Python": platform.python_version(), **{name: _version(name) for name in libraries}},
        merge_map=[  # channels that became one, of groups that lost some; rotated ones did not
            MergeMap(group.name, tuple(partition.labels.tolist()))
            for graph in folded.graphs
            for group, partition in graph.plan
            if not partition.rotates
        ],
        diagnostics=diagnostics,
        dropped=list(before.dropped.blocks),
        refinement=refinement,
        model_sha256=_sha256(before.file.source),
        picture=_picture(inputs),
    )
    report.notes = [
        *request.notes(folded.widths, report.sparsity), *report.fallbacks, *opened.view.notes, *notes, *written.notes,
        *filter(None, [refinement.note if refinement is not None else ""]), *verified.notes,
        *report.before.time_notes(report.after),
    ]  # fmt: skip
    return report


def _sha256(source: ModelLike) -> str:
    """Return the hash of a model's file; empty where there is none, or none that can be read again."""
    if isinstance(source, str | Path) and Path(source).is_file():
        with suppress(OSError), Path(source).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def _picture(inputs: ModelInputs | None) -> bytes:
    """Return images that were generated, as a PNG file; nothing where they are a user's, or no images."""
    if inputs is None or inputs.facts.is_data or inputs.are_tokens:  # caches have four axes, too
        return b""
    images = replace(inputs, batches=inputs.batches[:1]).images
    if images is None:
        return b""
    step = max(1, -(-max(images.shape[1:]) // _PIXELS))
    last = has_channels_last(images.shape)
    shown = images[:_SHOWN]
    return png_grid(shown[:, ::step, ::step] if last else shown[:, :, ::step, ::step], columns=_COLUMNS)
