"""Export a model: load -> prepare -> convert -> write a draft -> check it -> move it into place."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

from onnx import TensorProto

from onnxfold.config import checks
from onnxfold.config.checks import takes_keywords
from onnxfold.config.pixels import PixelScale, pixel_scale
from onnxfold.errors import ConfigError, ExportError
from onnxfold.export import draft as drafts
from onnxfold.export import parity
from onnxfold.export.fusion.local_rewrites import TO_FLOATS
from onnxfold.export.tflite.convert import Ports
from onnxfold.files import Output, check_outputs
from onnxfold.files.atomic import part_folder, replace_by
from onnxfold.graph.files.load import ModelLike, blames_broken_files, load
from onnxfold.graph.files.model_files import claims_on
from onnxfold.graph.files.save import to_model
from onnxfold.graph.run.session import float32_twin, has_other_floats
from onnxfold.graph.tensors import FLOAT_TYPES, Shape
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_inputs import input_infos, require_samples
from onnxfold.inputs.given_samples import Given, given_samples
from onnxfold.inputs.input_plan import free_sizes, needed_batch
from onnxfold.inputs.tokens.interface import token_interface

#: Most that rounding weights to 11 bits may change outputs by, relative to the largest one: about three times what
#: small networks show (0.0004).
TOLERANCES = {"float32": parity.TOLERANCE, "float16": 2e-3}
#: Times as much at single values, where all others leave this signal-to-noise ratio: rounding in deep networks.
_SINGLE, _QUIET = 20.0, 80.0


def to_tflite(model: ModelLike, path: str | Path, **options: Unpack[drafts.ExportOptions]) -> Path:
    """Write a model as a .tflite file; the parameters are those of :func:`export_model`."""
    return Path(export_model(model, path, **options).path)


def to_c_array(model: ModelLike, path: str | Path, **options: Unpack[drafts.ExportOptions]) -> Path:
    """Write a model as a C array for TensorFlow Lite Micro; the parameters are those of :func:`export_model`."""
    options["output_format"] = "c-array"
    return Path(export_model(model, path, **options).path)


@takes_keywords(
    drafts.ExportOptions, output_format="tflite", backend="direct", dtype="float32", input_shapes=None,
    keep_nchw_inputs=False, calibration=None, data=None, mean=None, std=None, channels="rgb", verify=True, force=False,
    seed=0,
)  # fmt: skip
@blames_broken_files
def export_model(
    model: ModelLike, path: str | Path, *,
    within: Callable[[drafts.ExportReport], AbstractContextManager[Any]] = nullcontext,
    **options: Unpack[drafts.ExportOptions],
) -> drafts.ExportReport:  # fmt: skip
    """Export a model and check that the file computes the same.

    Parameters
    ----------
    model : path or ModelProto
        The model; left untouched.
    path : path
        Target; appears complete and checked, or not at all.
    output_format : {'tflite', 'c-array'}
        A .tflite file, or a C header that holds it.
    backend : {'direct', 'onnx2tf', 'auto'}
        Own writer, onnx2tf in an interpreter of its own, or the second where the first refuses.
    dtype : {'float32', 'float16', 'int8'}
        Type of the stored weights; with 'int8' activations are quantised, too.
    input_shapes : mapping, optional
        Sizes of inputs to fix. Others that are free get usual ones that the model runs with, and a note; a batch
        stays free where the backend can leave it so, else it is 1.
    keep_nchw_inputs : bool
        Leave the axes of inputs as ONNX has them; else images are channels last.
    calibration : path or mapping of str to ndarray, optional
        Samples that ranges of int8 are taken from, up to 256 of them: an .npz file of arrays named after the inputs, or
        a folder of JPEG and PNG files. By default inputs are generated.
    data : path or mapping of str to ndarray, optional
        Samples that the file is checked on; by default every fourth of the calibration, which nothing else sees, or
        generated ones.
    mean, std : float or sequence of float, optional
        Mean and standard deviation of the pixels of folders, one or one per channel. Numbers up to 1 are for pixels
        from 0 to 1, larger ones for pixels from 0 to 255.
    channels : str
        The order of channels that the model takes, and that mean and std are in: 'rgb', or 'bgr' as OpenCV reads.
    verify : bool
        Run the file beside onnxruntime on the same inputs.
    force : bool
        Write an int8 file even if its outputs are too noisy.
    seed : int
        Seed of generated inputs.
    within : callable, optional
        Called with the report; the file appears inside of the context that it returns, such as one that writes more.

    Raises
    ------
    ConfigError
        If an option makes no sense, or the target is a file that the export reads.
    ExportError
        If an operator cannot be converted (names node, operator and reason), no interpreter is installed, or the
        outputs differ by more than the tolerance, of int8 by a noise above -20 dB. No file is left behind.
    ModelSaveError
        If the file cannot be written.
    """
    start = time.perf_counter()
    target, scale = checks.path("path", path), _check_options(options)
    calibration, data, dtype = options["calibration"], options["data"], options["dtype"]
    reads = {"calibration": calibration, "data": data}
    check_outputs(
        [Output(target, "the output")],
        claims_on([model], {name: Path(v) for name, v in reads.items() if _is_path(v)}),  # type: ignore[arg-type]
    )
    view = open_model(model, options["input_shapes"])
    if dtype == "int8":
        TO_FLOATS(view)
    free = {name: view.shape(name) for name in view.input_names}
    view.fix_input_shapes(free_sizes(view))
    view.fix_input_shapes(needed_batch(view))
    ranged, checked = (_arrays(view, v, scale) for v in (calibration, data))
    if ranged is not None and checked is None:
        ranged, checked = parity.set_apart(view, ranged)
    with part_folder(target) as folder:
        draft = folder / "model.tflite"
        report, ports = drafts.write_draft(view, draft, options, ranged)
        report.path = str(target)
        report.notes += view.notes + _note_on_sizes(view, free)
        if options["verify"]:
            measured = _check(view, draft, ports, options, checked)
            report.parity = asdict(measured)
            if not measured.output:
                report.notes.append("no output is finite on the synthetic inputs: nothing was compared")
            _judge(measured, dtype, force=options["force"])
        if options["output_format"] == "c-array":
            drafts.write_c_array(draft, folder / "model.h", name=target.stem)
            draft = folder / "model.h"
        report.seconds = time.perf_counter() - start
        with within(report):
            replace_by(target, draft)
    return report


def _check_options(options: drafts.ExportOptions) -> PixelScale | None:
    """Check the options, write flags and the seed in their own types, and return the scale of pixels."""
    checks.choice("backend", options["backend"], ("direct", "onnx2tf", "auto"))
    checks.choice("dtype", options["dtype"], ("float32", "float16", "int8"))
    checks.choice("format", options["output_format"], ("tflite", "c-array"))
    options["verify"] = checks.flag("verify", options["verify"])
    options["force"] = checks.flag("force", options["force"])
    options["seed"] = checks.seed(options["seed"])
    scale = pixel_scale(options["mean"], options["std"], options["channels"])
    calibration, data = options["calibration"], options["data"]
    if calibration is not None and (options["dtype"] != "int8" or options["backend"] == "onnx2tf"):
        raise ConfigError("calibration sets the ranges of int8: give it with dtype int8 and the direct writer")
    if data is not None and not options["verify"]:
        raise ConfigError("data checks the file, and no-verify leaves the check out: give one of them")
    if scale is not None and not any(map(_is_path, (calibration, data))):
        raise ConfigError("mean, std and channels are for a folder of images: give calibration or data, too")
    for source in filter(_is_path, (calibration, data)):
        require_samples(source, scaled=scale is not None)
    options["keep_nchw_inputs"] = checks.flag("keep_nchw_inputs", options["keep_nchw_inputs"])
    return scale


def open_model(model: ModelLike, input_shapes: Mapping[str, Sequence[int]] | None = None) -> GraphView:
    """Load a model with its inputs fixed, in float32: a model in other floats as its float32 twin."""
    view = load(model, input_shapes)
    cut = next((name for name in (*view.input_names, *view.output_names) if "\0" in name), None)
    if cut is not None:
        raise ExportError(f"the name '{cut}' holds a zero byte, where names in TFLite files end: rename it")
    view.fix_input_shapes(view.input_shapes)
    others = FLOAT_TYPES - {TensorProto.FLOAT}
    if has_other_floats(view.model) or any(view.weight_type(n) in others for n in view.weights):
        notes, view = view.notes, load(float32_twin(to_model(view)))
        view.notes += notes
    return view


def _note_on_sizes(view: GraphView, before: Mapping[str, Shape | None]) -> list[str]:
    """Return notes on the sizes of inputs that were free, and were written into the model."""
    after = {name: view.shape(name) or () for name in view.input_names}
    fixed = (f"{n}:{','.join('?' if d is None else str(d) for d in s)}" for n, s in after.items() if s != before[n])
    sizes = " ".join(fixed)
    return [f"sizes that are free in the model are fixed to {sizes}: --input-shapes sets others"] if sizes else []


def _check(
    view: GraphView, draft: Path, ports: Ports, options: drafts.ExportOptions, samples: drafts.Arrays | None
) -> parity.Parity:
    bounded, count = parity.probabilities(view), parity.check_samples(view)
    if samples is None:
        batches = parity.reference_inputs(view, samples=count, seed=options["seed"])
    else:
        batches = parity.user_batches(view, samples, count)
    outputs = parity.run_reference(view, batches)
    if samples is None and options["dtype"] != "int8":  # inputs that excite outputs lie outside of the ranges of int8
        more = parity.exciting_inputs(bounded, batches, outputs, lambda feeds: parity.run_reference(view, feeds))
        batches, outputs = [*batches, *more[0]], outputs + more[1]
    measured = parity.compare(draft, batches, outputs, ports, bounded)
    return measured if samples is None else replace(measured, inputs="given")


def _judge(measured: parity.Parity, dtype: str, *, force: bool = False) -> None:
    snr_db = measured.snr_db
    if dtype == "int8":
        if snr_db is not None and not snr_db >= drafts.LEAST_SNR and not force:
            raise ExportError(
                f"in int8 '{measured.noisiest}' has a signal-to-noise ratio of {snr_db:.1f} dB on "
                f"{measured.samples} {measured.inputs} samples, and {drafts.LEAST_SNR:g} dB are the least; nothing was "
                "written: give real samples with --calibration, take --dtype float16 or float32, or write it all the "
                "same with --force"
            )
        return
    tolerance = TOLERANCES[dtype] * (_SINGLE if snr_db is not None and snr_db >= _QUIET else 1.0)
    if not measured.max_rel_error <= tolerance:
        raise ExportError(
            f"the export's outputs differ from the ONNX model's: '{measured.output}' by {measured.max_rel_error:.2g} "
            f"of {measured.scale} ({measured.interpreter}, tolerance {tolerance:g}); nothing was written; "
            "--no-verify skips this check"
        )


def _is_path(samples: object) -> bool:
    return samples is not None and not isinstance(samples, Mapping)


def _arrays(view: GraphView, samples: Given | None, scale: PixelScale | None) -> drafts.Arrays | None:
    """Return samples of a user in the types of the inputs."""
    if samples is None:
        return None
    interface = token_interface(view)
    return given_samples(input_infos(view), samples, scale, most=drafts.MOST_CALIBRATION, interface=interface).arrays
