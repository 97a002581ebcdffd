"""Projects for Arduino and ESP-IDF: complete, as their tools expect them, and C that compiles."""

import json
import shutil
import tomllib
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result

from onnxfold.cli import cli
from onnxfold.commands.export import PROJECTS
from onnxfold.edge_bench.job import measure_arena
from onnxfold.errors import ConfigError, ExportError, ModelSaveError
from onnxfold.export import firmware, to_tflite
from onnxfold.export.firmware import project as project_module
from onnxfold.export.firmware import write_project
from onnxfold.export.firmware.interface import config_h, method_of, operators_h, tensors_c
from onnxfold.export.firmware.need import read_tflite
from testing import models
from tests.firmware.jobs import small_model
from tests.firmware.native import (
    CORE,
    FLAGS,
    HERE,
    build_core,
    compile_native,
    identity_interface,
    needs_gcc,
    running,
    transcript,
)  # fmt: skip

TEMPLATES = CORE.parent
STAND_INS = HERE / "stand_ins"
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: apt install g++")
needs_tflite = pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="pip install 'onnxfold[tflite]'")
needs_generator = pytest.mark.skipif(find_spec("emx_onnx_cgen") is None, reason="pip install 'onnxfold[firmware]'")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["export", *map(str, arguments)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(small_model(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@needs_tflite
def test_arduino_sketch(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "my_sketch", "--format", "arduino", "--report", tmp_path / "report.json")
    assert done.exit_code == 0, done.output
    folder = tmp_path / "my_sketch"
    assert (folder / "my_sketch.ino").is_file()  # arduino-cli wants the folder's name
    sketch = (folder / "sketch.yaml").read_text()
    assert "fqbn: arduino:mbed_nano:nano33ble" in sketch
    assert "Chirale_TensorFLowLite" in sketch
    assert "#include <Chirale_TensorFlowLite.h>" in (folder / "src" / "model_tflm_library.h").read_text()
    assert "resolver.AddConv2D()" in (folder / "src" / "model_operators.h").read_text()
    # Channels last, as the .tflite file has them: axes of ONNX in the order of memory.
    assert '"1x8x8x2", "0 2 3 1", "x"' in (folder / "src" / "model_tensors.c").read_text()
    assert "$" not in (folder / "README.md").read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    assert sorted(report["files"]) == sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert report["input_bytes"] == 2 * 8 * 8 * 4


@needs_tflite
def test_esp_idf_project(model: Path, tmp_path: Path) -> None:
    assert run(model, tmp_path / "esp", "--format", "esp-idf").exit_code == 0
    folder = tmp_path / "esp"
    assert "project(" in (folder / "CMakeLists.txt").read_text()
    assert "esp-tflite-micro" in (folder / "main" / "CMakeLists.txt").read_text()
    assert "espressif/esp-tflite-micro" in (folder / "main" / "idf_component.yml").read_text()
    assert 'CONFIG_IDF_TARGET="esp32"' in (folder / "sdkconfig.defaults").read_text()
    rows = [line.split(",") for line in (folder / "partitions.csv").read_text().splitlines() if line[0] != "#"]
    (offset, size) = (int(rows[0][i], 16) for i in (3, 4))
    assert offset + size == 4 << 20  # the whole flash of the board
    assert "$" not in (folder / "README.md").read_text()


@needs_generator
@pytest.mark.parametrize("kind", ["arduino", "esp-idf"])
def test_generated_c_needs_no_library(kind: str, model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "out", "--format", kind, "--runtime", "generated")
    assert done.exit_code == 0, done.output
    assert "emx-onnx-cgen" in done.output
    files = {p.name for p in (tmp_path / "out").rglob("*")}
    assert {"model_generated.c", "model_generated_data.c"} <= files
    assert not {"model_tflm.cpp", "idf_component.yml"} & files
    text = "".join(p.read_text() for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert "Chirale" not in text
    assert "esp-tflite-micro" not in text


@needs_generator
def test_large_activations_of_esp_idf_go_to_psram(tmp_path: Path) -> None:
    write_project(small_model(width=600), tmp_path / "esp", "esp-idf", runtime="generated")
    config = (tmp_path / "esp" / "main" / "model_config.h").read_text()
    assert '#include "esp_attr.h"' in config
    assert "#define MODEL_ARENA_ATTRIBUTE EXT_RAM_BSS_ATTR" in config
    assert "in PSRAM" in (tmp_path / "esp" / "README.md").read_text()


def test_folder_must_be_new(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    for kind in project_module.KINDS:
        error = run(model, tmp_path / "out", "--format", kind).exception
        assert isinstance(error, ConfigError)
        assert "is not an empty folder" in str(error)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["notes.txt"]
    error = run(model, tmp_path / "no" / "such" / "folder", "--format", "qemu").exception
    assert isinstance(error, ModelSaveError)


@needs_tflite
def test_an_empty_folder_is_filled(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run(model, tmp_path / "out", "--format", "arduino", "--no-verify").exit_code == 0
    assert (tmp_path / "out" / "out.ino").is_file()


def test_nothing_is_left_of_a_failure(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(project_module, "_generated", fails)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ModelSaveError, match="no space left"):
        write_project(model, tmp_path / "out", "qemu")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--format", "qemu", "--runtime", "tflm"), "only the runtime 'generated'"),
        (("--format", "arduino", "--dtype", "float16"), "float16 is not for projects"),
        (("--format", "qemu", "--dtype", "int8"), "generated C computes in float32"),
        (("--format", "arduino", "--keep-nchw-inputs"), "--keep-nchw-inputs is not for projects"),
        (("--runtime", "generated"), "--runtime is for projects"),
    ],
)
def test_options_that_make_no_sense(options: tuple[str, ...], message: str, model: Path, tmp_path: Path) -> None:
    error = run(model, tmp_path / "out", *options).exception
    assert isinstance(error, ConfigError)
    assert message in str(error)


def test_the_command_knows_every_kind() -> None:
    assert tuple(project_module.KINDS) == PROJECTS


def test_sketch_names(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be a sketch's name"):
        write_project(model, tmp_path / "my sketch", "arduino", verify=False)
    with pytest.raises(ConfigError, match="project 'avr' is unknown"):
        firmware.write_project(model, tmp_path / "out", "avr")


@pytest.mark.parametrize(
    ("operator", "method"),
    [
        ("CONV_2D", "Conv2D"), ("DEPTHWISE_CONV_2D", "DepthwiseConv2D"), ("FULLY_CONNECTED", "FullyConnected"),
        ("BATCH_MATMUL", "BatchMatMul"), ("RELU6", "Relu6"), ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighbor"),
        ("SPACE_TO_DEPTH", "SpaceToDepth"), ("PADV2", "PadV2"), ("SPLIT_V", "SplitV"), ("ARG_MAX", "ArgMax"),
        ("L2_NORMALIZATION", "L2Normalization"), ("TRANSPOSE_CONV", "TransposeConv"), ("CUMSUM", "CumSum"),
    ],
)  # fmt: skip
def test_names_of_the_resolver(operator: str, method: str) -> None:
    assert method_of(operator) == method


def test_names_that_the_protocol_cannot_carry() -> None:
    config = config_h(identity_interface(), 'a"b%]\n', "d", "r", 16)
    assert '#define MODEL_NAME "a_b___"' in config
    assert "{MODEL_FLOAT32, 3, 0," in tensors_c(identity_interface())


@needs_tflite
@pytest.mark.skipif(find_spec("tflite_micro") is None, reason="pip install tflite-micro")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", ["residual", "preact_residual", "dense_net", "autoencoder", "conv1d"])
def test_arena_is_what_tensorflow_lite_micro_needs(name: str, dtype: str, tmp_path: Path) -> None:
    """Activations and scratch memory exactly; tables on a machine with 64-bit pointers, larger than a board's."""
    if dtype == "int8":
        pytest.importorskip("ai_edge_quantizer")
    path = to_tflite(getattr(models, name)(0), tmp_path / "net.tflite", dtype=dtype, verify=False)
    planned = read_tflite(path).need
    needed = measure_arena(path, 1, planned.arena_bytes or 0)
    assert isinstance(needed, dict)
    assert planned.activation_bytes == needed["head"]
    assert needed["tail"] <= planned.table_bytes <= 1.4 * needed["tail"] + 1024


@needs_tflite
def test_large_int8_files_keep_their_constants_inside(tmp_path: Path) -> None:
    """TensorFlow Lite Micro takes constants behind the FlatBuffer, where quantisers put them, for activations."""
    pytest.importorskip("ai_edge_quantizer")
    path = to_tflite(models.mlp(0, widths=(16, 512, 600)), tmp_path / "net.tflite", dtype="int8")
    need = read_tflite(path).need
    assert need.model_bytes > 256 << 10
    assert need.activation_bytes == 512 + 608


@needs_tflite
def test_int8_projects(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_quantizer")
    done = run(model, tmp_path / "out", "--format", "arduino", "--dtype", "int8", "--report", tmp_path / "report.json")
    assert done.exit_code == 0, done.output
    assert "note: 'x' is int8: value = " in done.output
    assert "- 'x' is int8: value = " in (tmp_path / "out" / "README.md").read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["input_bytes"], report["output_bytes"], report["dtype"]) == (2 * 8 * 8, 5, "int8")
    assert "{MODEL_INT8, 128, 0," in (tmp_path / "out" / "src" / "model_tensors.c").read_text()
    assert (
        f"#define MODEL_ARENA_BYTES {report['arena_bytes']}\n"
        in (tmp_path / "out" / "src" / "model_config.h").read_text()
    )


@needs_tflite
def test_what_no_board_holds_is_refused_and_what_may_not_fit_is_warned_of(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"arduino-nano-33-ble does not fit: needs .* K too much; fold it .*nothing was"
    ):
        write_project(small_model(width=800), tmp_path / "none", "arduino", verify=False)
    assert not (tmp_path / "none").exists()
    # Between what the board has and what system and stack leave of it.
    onnx.save(small_model(width=700), tmp_path / "close.onnx")
    done = run(tmp_path / "close.onnx", tmp_path / "close", "--format", "arduino", "--no-verify")
    assert done.exit_code == 0
    assert "warning: the model for arduino-nano-33-ble does not fit: needs " in done.stderr
    assert "warning" not in run(model, tmp_path / "small", "--format", "arduino", "--no-verify").stderr


def tflm_program(folder: Path, arena: int, operators: tuple[str, ...] = ("CONV_2D",)) -> Path:
    interface = identity_interface()
    (folder / "model_config.h").write_text(config_h(interface, "twice", "host", "tflm", arena))
    (folder / "model_data.h").write_text("static const unsigned char model_data[] = {0};\n")
    (folder / "model_operators.h").write_text(operators_h(operators))
    (folder / "model_tflm_library.h").write_text("")
    compile_native([
        "g++", "-std=c++14", "-Wall", "-Wextra", "-Werror", f"-DSTAND_IN_BYTES={interface.input_bytes}", f"-I{CORE}",
        f"-I{folder}", f"-I{STAND_INS / 'tflm'}", "-c", str(TEMPLATES / "tflm" / "model_tflm.cpp"),
        "-o", f"{folder}/m.o",
    ])  # fmt: skip
    return build_core(folder, interface, [folder / "m.o"], "-lstdc++", arena=arena)


@needs_gcc
@needs_gxx
def test_tflm_glue_restores_the_input_of_every_inference(tmp_path: Path) -> None:
    with running(tflm_program(tmp_path, 64, ("CONV_2D", "MAX_POOL_2D"))) as dut:
        dut.load(b"\0\0\x80\x3f" * 3)
        assert dut.infer(3, 1, 5).results == (2.0, 2.0, 2.0)
        assert dut.memory()["activations"] == 24


@needs_gcc
@needs_gxx
def test_tflm_glue_says_what_to_do_about_a_small_arena(tmp_path: Path) -> None:
    said = transcript(tflm_program(tmp_path, 16), "db load 12%db " + 24 * "0" + "%infer 1 0%")
    assert said.count("e-[Model cannot be used: AllocateTensors() failed: raise MODEL_ARENA_BYTES in") == 2


@needs_gxx
def test_arduino_port_answers(tmp_path: Path) -> None:
    """The sketch and its port, compiled against a stand-in for the core."""
    (tmp_path / "model_config.h").write_text(config_h(identity_interface(), "twice", "nano", "test", 16))
    (tmp_path / "model_tensors.c").write_text(tensors_c(identity_interface()))
    (tmp_path / "src").symlink_to(TEMPLATES / "arduino")
    sketch = (TEMPLATES / "arduino" / "sketch.ino").read_text().replace("src/port.h", "port.h")
    sketch = f"#include <Arduino.h>\n{sketch}"  # as the Arduino builder does
    # Arduino's loop never ends; standard input does.
    (tmp_path / "sketch.cpp").write_text(
        f"{sketch}\n#include <cstdio>\nint main() {{ setup(); while (!std::feof(stdin)) loop(); }}\n"
    )
    includes = [f"-I{d}" for d in (CORE, tmp_path, STAND_INS / "arduino")]
    objects = []
    for source in (*CORE.glob("*.c"), tmp_path / "model_tensors.c", HERE / "identity_model.c"):
        objects.append(str(tmp_path / f"{source.stem}.o"))
        compile_native(["gcc", *FLAGS, *includes, "-c", str(source), "-o", objects[-1]])
    sources = [tmp_path / "sketch.cpp", TEMPLATES / "arduino" / "port_arduino.cpp"]
    flags = ["-std=c++14", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable"]
    compile_native(["g++", *flags, *includes, *map(str, sources), *objects, "-o", str(tmp_path / "sketch")])
    assert transcript(tmp_path / "sketch", "name%timestamp%").endswith(
        "m-name-dut-[nano]\nm-ready\nm-lap-us-1234567\nm-ready\n"
    )


@needs_gcc
def test_esp_idf_port_compiles(tmp_path: Path) -> None:
    port = TEMPLATES / "esp_idf" / "port_esp_idf.c"
    includes = [f"-I{CORE}", f"-I{STAND_INS / 'esp_idf'}"]
    compile_native(["gcc", *FLAGS, *includes, "-c", str(port), "-o", str(tmp_path / "port.o")])


def test_templates_are_installed() -> None:
    """Every template has a pattern in pyproject.toml."""
    table = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = table["onnxfold.export.firmware"]
    missed = [
        str(p.relative_to(TEMPLATES))
        for p in TEMPLATES.rglob("*")
        if p.is_file()
        and p.suffix not in (".py", ".pyc")
        and not any(p.relative_to(TEMPLATES).match(pattern) for pattern in patterns)
    ]
    assert missed == []
