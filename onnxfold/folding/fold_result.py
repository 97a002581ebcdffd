"""The result of a fold: the model, its report, and methods that write them."""

from collections.abc import Callable, Iterable
from pathlib import Path

from onnx import ModelProto

from onnxfold.config import checks
from onnxfold.errors import ConfigError
from onnxfold.files import Output, Read, check_outputs
from onnxfold.graph.model_files import lazy_files
from onnxfold.graph.save import outputs_of, save, to_model
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.png_grid import PNG, write_png_grid
from onnxfold.report import FoldReport


class FoldResult:
    """A folded model and what was done to it.

    Attributes
    ----------
    report : FoldReport
        Sizes, groups, refusals, fidelity.
    view : GraphView
        The folded graph, its weights read when they are asked for.
    """

    def __init__(
        self,
        view: GraphView,
        report: FoldReport,
        *,
        external_data: bool = False,
        inputs: ModelInputs | None = None,
        reads: Callable[[], Iterable[Read]] = tuple,
    ) -> None:
        self.view = view
        self._reads = reads
        self._inputs = inputs
        self._external_data = external_data
        self.report = report

    @property
    def model(self) -> ModelProto:
        """The folded model; raises UnsupportedModelError above 2 GB."""
        return to_model(self.view)

    def save(self, path: str | Path, *, save_as_external_data: bool | None = None) -> Path:
        """Write the folded model; `path` appears complete or not at all.

        Weights are written beside it where that is asked for, or where it exceeds 2 GB: to ``<path>.data``, or to
        ``<path>.<hash>.data`` where there is another file of that name.

        Raises
        ------
        ModelSaveError
            If it cannot be written.
        ConfigError
            If `path` is a file that the fold read: these are never overwritten.
        """
        external = self._external_data if save_as_external_data is None else save_as_external_data
        target = checks.path("path", path)
        reads = [*self._reads(), *(Read(p, "a file that holds weights of this model") for p in lazy_files(self.view))]
        check_outputs(outputs_of(target, "the output", external_data=external), reads)
        save(self.view, target, external_data=external, keep=[read.path for read in reads])
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
        return write_png_grid(images, target)
