"""C code by emx-onnx-cgen with static activations, built and run on this machine, beside onnxruntime."""

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from onnxfold.budget.costs.memory import count_ram
from onnxfold.edge_bench.boards.dut import answers
from onnxfold.edge_bench.job import relative_error
from onnxfold.errors import ConfigError, ExportError
from onnxfold.export.firmware import FirmwareReport, generated_c, write_project
from onnxfold.export.firmware.interface import align
from onnxfold.graph.files.load import load
from testing import models
from tests.firmware.jobs import job_of, small_model
from tests.firmware.native import build_project, needs_gcc, running

pytest.importorskip("emx_onnx_cgen", reason=generated_c.INSTALL)

NETS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "residual": models.residual,
    "concat": models.concat_net,
    "grouped": models.grouped_conv,
    "squeeze_excite": models.squeeze_excite,
    "two_outputs": models.two_outputs,
    "prelu": models.prelu_net,
}


@needs_gcc
@pytest.mark.parametrize("name", NETS)
def test_networks_keep_their_outputs(name: str, tmp_path: Path) -> None:
    job = job_of(NETS[name](0), tmp_path)
    project = write_project(job.onnx, tmp_path / "firmware", "qemu")
    with running(build_project(Path(project.path))) as dut:
        outputs, _ = answers(dut, job, dut.signature(), 60.0)
    assert relative_error(job.reference, outputs) <= 1e-5


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> FirmwareReport:
    return write_project(small_model(), tmp_path_factory.mktemp("project") / "firmware", "qemu")


def source(project: FirmwareReport, name: str) -> str:
    return (Path(project.path) / "src" / name).read_text()


def test_activations_are_one_static_block(project: FirmwareReport) -> None:
    """The convolution's result, over which Relu writes, and the pooled one; input and output have their own arrays."""
    code = source(project, "model_generated.c")
    assert not re.search(r"\b(malloc|calloc|free)\(", code)
    assert "static unsigned char activations[MODEL_ARENA_BYTES]" in code
    conv, pooled = 4 * 8 * 8 * 4, 4 * 4 * 4 * 4
    assert project.arena_bytes == align(conv) + align(pooled)
    budget = count_ram(load(small_model()))
    assert budget is not None
    assert budget <= project.arena_bytes + project.input_bytes + project.output_bytes
    data = source(project, "model_generated_data.c")
    weights = re.findall(r"^(.*)\bweight\d+_\w*\[.* = \{", data, re.MULTILINE)
    assert len(weights) == 4
    assert all(w.startswith("const ") for w in weights)


def test_normalisation_is_merged_into_the_convolution(project: FirmwareReport) -> None:
    code = source(project, "model_generated.c")
    assert "OpType: BatchNormalization" not in code
    assert code.count("    MODEL_OP(") == 5


def test_same_model_same_files(project: FirmwareReport, tmp_path: Path) -> None:
    write_project(small_model(), tmp_path / "firmware", "qemu")
    for name in project.files:
        assert (tmp_path / "firmware" / name).read_bytes() == (Path(project.path) / name).read_bytes()


def fake_generator(folder: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "emx_onnx_cgen"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(f"import pathlib, sys\ntarget = pathlib.Path(sys.argv[-1])\n{program}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_what_the_generator_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_generator(tmp_path, "sys.exit('working\\nResult: Unsupported op Strange')", monkeypatch)
    with pytest.raises(ExportError, match=r"emx-onnx-cgen .* refuses the model: Result: Unsupported op Strange$"):
        write_project(small_model(), tmp_path / "firmware", "qemu")
    assert [p.name for p in tmp_path.iterdir()] == ["emx_onnx_cgen"]


def test_code_of_another_form_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later generator that allocates otherwise must not give firmware that is wrong."""
    code = "void model(const float x[1]) {\\n    float *a = pool_malloc(3);\\n}\\n"
    fake_generator(tmp_path, f"target.write_text('{code}')", monkeypatch)
    with pytest.raises(ExportError, match="writes statements that are not known here"):
        write_project(small_model(), tmp_path / "firmware", "qemu")
    fake_generator_entry = (tmp_path / "emx_onnx_cgen" / "__main__.py").read_text().replace("void model(", "int run(")
    (tmp_path / "emx_onnx_cgen" / "__main__.py").write_text(fake_generator_entry)
    with pytest.raises(ExportError, match="writes an entry that is not known here"):
        write_project(small_model(), tmp_path / "firmware", "qemu")
    assert not (tmp_path / "firmware").exists()


def test_unknown_operators_are_refused(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Strange", ["x"], ["y"], domain="com.example")], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)])
    with pytest.raises(ExportError, match="the type of 'y' is unknown"):
        write_project(model, tmp_path / "firmware", "qemu")
    assert list(tmp_path.iterdir()) == []


def test_missing_generator_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated_c, "installed_generator", lambda: None)
    with pytest.raises(ExportError, match=r"not installed: pip install 'emx-onnx-cgen"):
        write_project(small_model(), tmp_path / "firmware", "qemu")


def test_images_of_a_free_size_are_refused(tmp_path: Path) -> None:
    model = small_model()
    del model.graph.input[0].type.tensor_type.shape.dim[2:]
    for _ in range(2):
        model.graph.input[0].type.tensor_type.shape.dim.add(dim_param="s")
    with pytest.raises(ConfigError, match=r"give --input-shapes x:1,2,\?,\?"):
        write_project(model, tmp_path / "firmware", "qemu")
    assert list(tmp_path.iterdir()) == []
