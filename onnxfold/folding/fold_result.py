"""The result of a fold: the model, its report, and methods that write them."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from onnx import ModelProto

from onnxfold.config import OPTIONS, FoldConfig, checks
from onnxfold.config.option import file_of
from onnxfold.config.quantities import show_bytes
from onnxfold.errors import ConfigError
from onnxfold.files import Output, Read, check_outputs, write
from onnxfold.folders import ModelFolder
from onnxfold.folding.fold_model import WrittenModel
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.files.model_files import claims_on, lazy_files
from onnxfold.graph.files.save import outputs_of, save, to_model
from onnxfold.inputs.images.png_grid import PNG, png_grid
from onnxfold.report import FoldReport


class FoldResult:
    """A folded model and the report of its fold.

    Attributes
    ----------
    report : FoldReport
        Sizes, groups, refusals, fidelity.
    view : GraphView
        The folded graph; its weights are read on first use.
    """

    def __init__(
        self, written: WrittenModel, report: FoldReport, *, external_data: bool = False,
        reads: Callable[[], Iterable[Read]] = tuple, folder: ModelFolder | None = None,
    ) -> None:  # fmt: skip
        self._folder = folder
        self.view = written.view
        self._reads = reads
        self._inputs = written.inputs
        self._external_data = external_data
        self.report = report

    def __repr__(self) -> str:
        before, after = self.report.before, self.report.after
        parts = [
            f"{before.parameters:,} -> {after.parameters:,} parameters",
            f"{show_bytes(before.size_bytes)} -> {show_bytes(after.size_bytes)}",
            f"{self.report.sparsity:.1%} removed by {self.report.method}",
            self._closeness(),
        ]
        return f"<FoldResult: {', '.join(filter(None, parts))}>"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks; it fetches nothing."""
        from onnxfold.html_report.elements import element, serialise, table
        from onnxfold.html_report.numbers import cost_cells

        report = self.report
        name = f"{Path(report.model).name}: " if report.model else ""
        made = table(
            f"{name}{report.method}, {report.allocation} allocation, {report.requested}",
            ("", "before", "after", "removed"),
            cost_cells(report),
        )
        return serialise(element("div", made, element("p", self._closeness() or "not verified")))

    def _closeness(self) -> str:
        """Return the agreement with the original, of several outputs the lowest; empty if it was not measured."""
        fidelity = self.report.fidelity
        if fidelity is None or not fidelity.outputs:
            return ""
        agreements = [o.top1_agreement for o in fidelity.outputs if o.top1_agreement is not None]
        if agreements:
            closeness = f"top-1 agreement {min(agreements):.1%}"
        else:
            closeness = f"relative error {max(o.relative_error for o in fidelity.outputs):.3g}"
        return f"{closeness} on {fidelity.samples} samples of {fidelity.inputs}"

    @property
    def model(self) -> ModelProto:
        """The folded model; raises UnsupportedModelError above 2 GB."""
        return to_model(self.view)

    def save(self, path: str | Path, *, save_as_external_data: bool | None = None) -> Path:
        """Write the folded model; `path` appears complete or not at all.

        Weights are written beside it on request, or if it exceeds 2 GB: to ``<path>.data``, or to
        ``<path>.<hash>.data`` where there is another file of that name. Where a folder was folded, `path` becomes its
        copy with the folded model in it, whose weights lie in a file of their own if they did before.

        Raises
        ------
        ModelSaveError
            If it cannot be written.
        ConfigError
            If `path` is a file that the fold read: these are never overwritten. Where a folder was folded, if it is
            anything but an empty folder, or lies in that folder.
        """
        external = self._external_data if save_as_external_data is None else save_as_external_data
        target, folder = checks.path("path", path), self._folder
        reads = [*self._reads(), *(Read(p, "a file that holds weights of this model") for p in lazy_files(self.view))]
        write_model = partial(save, self.view, external_data=external, keep=[read.path for read in reads])
        if folder is None:
            check_outputs(outputs_of(target, "the output", external_data=external), reads)
            write_model(target)
        else:
            check_outputs([folder.output(target, "the output")], reads, [folder.root])
            folder.write(target, write_model)
        return target

    def save_inputs(self, path: str | Path) -> Path:
        """Write the images that the network was run on as one PNG file.

        Raises
        ------
        ConfigError
            If it was not run, or not on images, or if the name does not end in .png, or is that of a file that the fold
            read.
        ModelSaveError
            If the file cannot be written.
        """
        images = self._inputs.images if self._inputs is not None else None
        if images is None:
            raise ConfigError("there are no images to save: the method did not run the network, or not on images")
        target = checks.path("path", path)
        check_outputs([Output(target, "the output", PNG)], self._reads())
        write({target: png_grid(images)})
        return target


def files_read(model: ModelLike, config: FoldConfig, folder: ModelFolder | None = None) -> Callable[[], Iterator[Read]]:
    """Return a function that lists the files that a fold reads; their paths hold even if the working folder changes."""
    model = model if isinstance(model, ModelProto) else Path(model).absolute()
    named = {option.role: file_of(option, getattr(config, name)) for name, option in OPTIONS.items() if option.role}
    named |= {} if folder is None else {"the input folder": folder.root}
    files = {role: path.absolute() for role, path in named.items() if path is not None}
    return partial(claims_on, [model], files)
