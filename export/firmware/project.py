"""Firmware projects that hold a model: an Arduino sketch, an ESP-IDF project, firmware for QEMU."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, TypedDict, Unpack

from onnxfold.budget.costs.memory import count_flash
from onnxfold.budget.devices import DeviceProfile, MemoryNeed
from onnxfold.config import NOTHING, checks
from onnxfold.config.checks import takes_keywords
from onnxfold.errors import ConfigError
from onnxfold.export.api import export_model, open_model
from onnxfold.export.draft import ExportOptions, SampleOptions, c_identifier, write_c_array
from onnxfold.export.firmware.generated_c import generate_c
from onnxfold.export.firmware.interface import Interface, config_h, memory_ld, operators_h, read_interface, tensors_c
from onnxfold.export.firmware.need import FLASH_BYTES, RAM_BYTES, advice_to_fit, board_of, read_tflite, require_room
from onnxfold.export.tflite.convert import fix_to_one_sample
from onnxfold.export.tflite.layout import channels_last
from onnxfold.files import Output, check_outputs, new_folder
from onnxfold.graph.files.load import ModelLike, blames_broken_files
from onnxfold.graph.files.model_files import claims_on
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.printable import printable

#: Kinds of projects -> what runs the model there unless asked otherwise.
KINDS = {"arduino": "tflm", "esp-idf": "tflm", "qemu": "generated"}
_ESP_PSRAM = '#include "esp_attr.h"\nEXT_RAM_BSS_ATTR'
_SOURCES = (".c", ".cpp", ".h")
_ARDUINO_PLATFORM = "arduino:mbed_nano (4.1.5)"
_ARDUINO_LIBRARY = "Chirale_TensorFLowLite (2.0.0)"
_ESP_COMPONENT = 'espressif/esp-tflite-micro: "^1.3.3"'


@dataclass(frozen=True, kw_only=True)
class ModelOfProject:
    """The model of a project, and the memory that it takes."""

    path: str  # the project's folder
    kind: str  # one of `KINDS`
    runtime: str  # what runs the model, with its version
    input_bytes: int  # all inputs, and all outputs
    output_bytes: int
    arena_bytes: int  # memory for activations; of TensorFlow Lite Micro with an estimate of its tables
    model_bytes: int  # the model in read-only memory
    dtype: str  # type of weights and activations


@dataclass(frozen=True, kw_only=True)
class FirmwareReport(ModelOfProject):
    """Contents of a project."""

    misfit: str  # why the model does not fit the board, as far as its profile tells; empty if it fits
    files: tuple[str, ...]  # relative to the folder
    notes: tuple[str, ...] = ()  # what a user should know: the scales of int8, and sizes that were free


@dataclass(frozen=True)
class _Content:
    """The files of a model, by name, and what is said of it."""

    interface: Interface
    need: MemoryNeed
    files: Mapping[str, str]
    is_tflm: bool = False  # whether TensorFlow Lite Micro runs the model, or generated code
    notes: tuple[str, ...] = ()


class ProjectOptions(TypedDict, total=False):
    """Options of a project by name."""

    runtime: str  # 'tflm' or 'generated', C code by emx-onnx-cgen; as in `KINDS` if empty
    dtype: str  # of weights, activations, inputs and outputs: 'float32', or 'int8' for TensorFlow Lite Micro alone
    name: str  # what the firmware calls the model; by default the file's name without its suffix
    input_shapes: Mapping[str, Sequence[int]] | None  # sizes of free dimensions
    flash_bytes: int  # memory that firmware for QEMU is linked for
    ram_bytes: int
    samples: SampleOptions
    verify: bool  # whether the .tflite file runs beside onnxruntime here; generated code is compared when it runs
    seed: int  # of the inputs of that


@takes_keywords(
    ProjectOptions, runtime="", dtype="float32", name="", input_shapes=None, flash_bytes=FLASH_BYTES,
    ram_bytes=RAM_BYTES, samples=NOTHING, verify=True, seed=0,
)  # fmt: skip
@blames_broken_files
def write_project(
    model: ModelLike, directory: str | Path, kind: str, *,
    within: Callable[[FirmwareReport], AbstractContextManager[Any]] = nullcontext, **options: Unpack[ProjectOptions],
) -> FirmwareReport:  # fmt: skip
    """Write a project that puts a model on a board: the folder appears complete, or not at all.

    `kind` is 'arduino' for an Arduino Nano 33 BLE, 'esp-idf' for an ESP-EYE, 'qemu' for QEMU's Cortex-M4F. A free batch
    becomes 1. The context that `within` returns for the report, such as one that writes more, ends before the project
    appears. A model that cannot be written for the runtime, or needs more memory than the board has, is an ExportError.
    What the board's profile says of system and runtime is an estimate: a model that fits without them is written, and
    the report says why it may not fit.
    """
    dtype = options["dtype"]
    runtime = _check_kind(kind, options["runtime"], dtype)
    checking: ExportOptions = {
        "verify": checks.flag("verify", options["verify"]), "seed": checks.seed(options["seed"]), "dtype": dtype
    }  # fmt: skip
    target = checks.path("directory", directory)
    check_outputs([Output(target, "the output", is_folder=True)], claims_on([model]))
    unnamed = Path(model).stem if isinstance(model, (str, Path)) else model.graph.name or "model"
    names = {"name": options["name"] or unnamed, "directory": target.name}
    view = open_model(model, options["input_shapes"])
    fix_to_one_sample(view)
    with new_folder(target) as draft, tempfile.TemporaryDirectory() as work:
        if runtime == "generated":
            content = _generated(view, Path(work))
        else:
            content = _tflm(view, Path(work), kind, {**options["samples"], **checking})
        board = board_of(kind, options["flash_bytes"], options["ram_bytes"])
        if kind != "qemu":  # whose linker says it, and by how many bytes
            require_room(content.need, board, dtype)
        written = _project_files(content, kind, names, board)
        for file, text in written.items():
            (draft / file).parent.mkdir(parents=True, exist_ok=True)
            (draft / file).write_text(text, encoding="utf-8", newline="\n")
        report = FirmwareReport(
            path=str(target), kind=kind, runtime=content.need.runtime, input_bytes=content.interface.input_bytes,
            output_bytes=content.interface.output_bytes, arena_bytes=content.need.arena_bytes or 0,
            model_bytes=content.need.model_bytes, dtype=dtype, misfit=advice_to_fit(content.need, board, dtype),
            files=tuple(sorted(written)), notes=content.notes,
        )  # fmt: skip
        with within(report):
            pass
    return report


def _check_kind(kind: str, runtime: str, dtype: str) -> str:
    checks.choice("project", kind, tuple(KINDS))
    if runtime != "":
        checks.choice("runtime", runtime, ("tflm", "generated"))
    if kind == "qemu" and runtime == "tflm":
        raise ConfigError("firmware for QEMU supports only the runtime 'generated'")
    checks.choice("dtype", dtype, ("float32", "int8"))
    if dtype == "int8" and (runtime or KINDS[kind]) == "generated":
        raise ConfigError("generated C computes in float32: int8 is for the runtime tflm")
    return runtime or KINDS[kind]


def _generated(view: GraphView, work: Path) -> _Content:
    interface = read_interface(view)
    runtime, files_of_c, arena_bytes = generate_c(view, interface, work)
    need = MemoryNeed(
        runtime=runtime, model_bytes=count_flash(view), activation_bytes=arena_bytes,
        buffer_bytes=interface.input_bytes + interface.output_bytes, basis="the project's arrays; constants, counted",
    )  # fmt: skip
    return _Content(interface, need, files_of_c)


def _tflm(view: GraphView, work: Path, kind: str, options: ExportOptions) -> _Content:
    path = work / "model.tflite"
    report = export_model(to_model(view), path, **options)
    last = {name: channels_last(len(view.shape(name) or ())) for name in (*view.input_names, *view.output_names)}
    layouts = report.inputs | report.outputs
    axes_of = {name: layout.perm for name, layout in last.items() if layout.name() == layouts[name]}
    tflm_model = read_tflite(path)
    interface = read_interface(view, axes_of, tflm_model.int8)
    write_c_array(path, work / "model_data.h", name="model_data")
    library = "#include <Chirale_TensorFlowLite.h>\n" if kind == "arduino" else ""
    sources = {
        "model_data.h": (work / "model_data.h").read_text(),
        "model_operators.h": operators_h(tflm_model.operators),
        "model_tflm_library.h": f"// The header that the library is found by, where it needs one.\n{library}",
        **_templates("tflm"),
    }
    return _Content(interface, tflm_model.need, sources, is_tflm=True, notes=tuple(report.notes))


#: The folder of the templates of a kind of project, and that of the code in a project.
_FOLDERS = {"arduino": ("arduino", "src"), "esp-idf": ("esp_idf", "main"), "qemu": ("mps2_an386", "src")}
#: Templates that are filled, or get another name; every other file of a folder is in every project of the kind.
_FILLED = ("README.md", "sketch.ino", "main_CMakeLists.txt")


def _project_files(content: _Content, kind: str, names: Mapping[str, str], board: DeviceProfile) -> dict[str, str]:
    (folder, code), need = _FOLDERS[kind], content.need
    more, facts = _OWN_FILES[kind](content, names["directory"], board)
    arena = _ESP_PSRAM if kind == "esp-idf" and need.in_psram(board) else ""
    sources = {
        **_templates("core"),
        "model_config.h": config_h(
            content.interface, names["name"], board.name, need.runtime, need.arena_bytes or 0, arena
        ),
        "model_tensors.c": tensors_c(content.interface),
        **content.files,
    }
    own = _templates(folder)
    return {
        **{f"{code}/{n}": text for n, text in sources.items()},
        **{f"{code}/{n}" if n.endswith(_SOURCES) else n: text for n, text in own.items() if n not in _FILLED},
        **more,
        "README.md": _readme(own["README.md"], content, {**names, **facts}),
    }


#: The files that depend on the model, and what the README says of it.
_OwnFiles = tuple[dict[str, str], dict[str, str]]


def _qemu_files(content: _Content, folder: str, board: DeviceProfile) -> _OwnFiles:
    sizes = {"flash_text": _size(board.flash_bytes), "ram_text": _size(board.ram_bytes)}
    return {"memory.ld": memory_ld(board.flash_bytes, board.ram_bytes)}, sizes


def _arduino_files(content: _Content, folder: str, board: DeviceProfile) -> _OwnFiles:
    if c_identifier(folder) != folder.replace("-", "_"):
        raise ConfigError(f"'{folder}' cannot be a sketch's name: use letters, digits, '-' and '_'")
    lines = [
        "profiles:", "  nano33ble:", "    fqbn: arduino:mbed_nano:nano33ble", "    platforms:",
        f"      - platform: {_ARDUINO_PLATFORM}",
        *(["    libraries:", f"      - {_ARDUINO_LIBRARY}"] if content.is_tflm else []),
        "default_profile: nano33ble", "",
    ]  # fmt: skip
    library = _ARDUINO_LIBRARY.partition(" ")[0]
    texts = {
        "library_text": f" and the library {library}" if content.is_tflm else "",
        "ide_text": f' and the library "{library}"' if content.is_tflm else "",
    }
    return {f"{folder}.ino": _templates("arduino")["sketch.ino"], "sketch.yaml": "\n".join(lines)}, texts


def _esp_idf_files(content: _Content, folder: str, board: DeviceProfile) -> _OwnFiles:
    requires = "driver esp_timer app_update bootloader_support" + (" esp-tflite-micro" if content.is_tflm else "")
    cmake = _templates("esp_idf")["main_CMakeLists.txt"].replace("@REQUIRES@", requires)
    component = {"main/idf_component.yml": f"dependencies:\n  {_ESP_COMPONENT}\n"} if content.is_tflm else {}
    place = "PSRAM" if content.need.in_psram(board) else "internal RAM"
    return {"main/CMakeLists.txt": cmake, **component}, {"ram_place": place}


_OWN_FILES = {"arduino": _arduino_files, "esp-idf": _esp_idf_files, "qemu": _qemu_files}


def _readme(template: str, content: _Content, facts: Mapping[str, str]) -> str:
    runtime = content.need.runtime
    text = Template(template).substitute(
        runtime_text=f"{runtime} with the model as a .tflite array" if content.is_tflm else f"C code by {runtime}",
        input_bytes=content.interface.input_bytes,
        output_bytes=content.interface.output_bytes,
        activation_bytes=content.need.arena_bytes or 0,
        activation_text=" (estimated: `MODEL_ARENA_BYTES` in `model_config.h`)" if content.is_tflm else "",
        **{name: printable(text) for name, text in facts.items()},
    )
    notes = "".join(f"- {printable(note)}\n" for note in content.notes)
    return f"{text}\n## Notes\n\n{notes}" if notes else text


def _size(size_bytes: int) -> str:
    return f"{size_bytes // 1024:,} KB" if size_bytes % 1024 == 0 else f"{size_bytes:,} bytes"


def _templates(folder: str) -> dict[str, str]:
    return {file.name: file.read_text("utf-8") for file in files("onnxfold.export.firmware").joinpath(folder).iterdir()}
