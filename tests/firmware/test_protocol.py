"""The firmware's answers, word for word: MLPerf Tiny's runner must understand them."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from onnxfold.export.firmware.interface import Interface, Tensor
from tests.firmware.native import HERE, build_core, identity_interface, needs_gcc, running, transcript, vector

pytestmark = needs_gcc
READY = "m-ready\n"
GREETING = "m-timestamp-mode-performance\nm-lap-us-T\nm-init-done\nm-ready\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_core(tmp_path_factory.mktemp("core"), identity_interface(), [HERE / "identity_model.c"])


def answer(program: Path, *commands: str) -> str:
    """Return the answers, the greeting left out, with T for every time."""
    said = transcript(program, "".join(f"{c}%" for c in commands))
    said = re.sub(r"(m-lap-us|x-ticks)-\d+", r"\1-T", said)
    assert said.startswith(GREETING)
    return said.removeprefix(GREETING)


def hexed(*values: float) -> str:
    return struct.pack(f"<{len(values)}f", *values).hex()


def test_transcript_of_a_benchmark(program: Path) -> None:
    said = answer(program, "name", "profile", "timestamp", "db load 12", f"db {hexed(1, -2.5)}", f"db {hexed(2**-20)}",
                  "db print", "infer 2 1", "results")  # fmt: skip
    assert said == (
        f"m-name-dut-[host]\n{READY}"
        f"m-profile-[ULPMark for tinyML Firmware V0.0.1]\nm-model-[twice]\n{READY}"
        f"m-lap-us-T\n{READY}"
        f"m-[Expecting 12 bytes]\n{READY}"
        f"{READY}"
        f"m-load-done\n{READY}"
        f"m-buffer-00-00-80-3f-00-00-20-c0\nm-buffer-00-00-80-35\n{READY}"
        "m-warmup-start-1\nm-warmup-done\nm-infer-start-2\nm-lap-us-T\nm-lap-us-T\nm-infer-done\nx-ticks-T\n"
        f"m-results-[2.00000000e+00,-5.00000000e+00,1.90734863e-06]\n{READY}"
        f"m-results-[2.00000000e+00,-5.00000000e+00,1.90734863e-06]\n{READY}"
    )


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("nonsense 1", "Unknown command: nonsense"),
        ("db", "Command 'db' requires a subcommand"),
        ("db load", "Command 'db load' requires the # of bytes"),
        ("db load 0", "Command 'db load' must be >0 bytes"),
        ("db load x", "Command 'db load' must be >0 bytes"),
        ("db load 13", "Supplied buffer size 13 exceeds maximum of 12"),
        ("db load 99999999999999999999", "Command 'db load' must be >0 bytes"),
        ("db 00", "No bytes are expected: use 'db load' first"),
        ("db 0", "Insufficient number of hex digits"),
        ("infer 0", "Inference iterations must be >0"),
        ("infer -1", "Inference iterations must be >0"),
        ("infer 1 -1", "Inference warmup must be >=0"),
        ("infer 1 0", "Input has 0 bytes, expected 12"),
        ("x" * 200, "Command too long"),
    ],
)
def test_errors(program: Path, command: str, error: str) -> None:
    assert answer(program, command) == f"e-[{error}]\n{READY}"


def test_errors_leave_the_firmware_usable(program: Path) -> None:
    said = answer(program, "db load 4", "db 0g", "db 01zz", "x" * 500, "name")
    assert said == (
        f"m-[Expecting 4 bytes]\n{READY}e-[Invalid hex digit '0g']\n{READY}e-[Invalid hex digit 'zz']\n{READY}"
        f"e-[Command too long]\n{READY}m-name-dut-[host]\n{READY}"
    )


def test_half_an_input_is_not_inferred_on(program: Path) -> None:
    said = answer(program, "db load 12", f"db {hexed(1)}", "infer 1 0")
    assert said.endswith(f"e-[Input has 4 bytes, expected 12]\n{READY}")


def test_digits_beyond_the_input_are_passed_over(program: Path) -> None:
    said = answer(program, "db load 12", f"db {hexed(1, 2, 3, 4)}", "results")
    assert "m-load-done" in said
    assert "e-[" not in said


def test_line_ends_of_terminals_and_empty_commands(program: Path) -> None:
    assert answer(program, "\r\nname\r\n", "", "  ") == f"m-name-dut-[host]\n{READY}{READY}{READY}"


def test_default_is_one_inference_after_ten(program: Path) -> None:
    said = answer(program, "db load 12", f"db {hexed(1, 2, 3)}", "infer")
    assert "m-warmup-start-10\n" in said
    assert "m-infer-start-1\n" in said


def test_help_names_every_command(program: Path) -> None:
    said = answer(program, "help")
    for command in ("help", "name", "profile", "timestamp", "db", "infer", "results", "signature", "memory"):
        assert re.search(rf"^{command}\b.*:", said, re.MULTILINE), command


def test_own_lines_begin_with_x(program: Path) -> None:
    assert answer(program, "signature", "memory") == (
        "x-input-[float32,1x3,0 1,x]\nx-output-[float32,1x3,0 1,y]\nx-runtime-[test]\nx-tick-hz-1000000\n"
        f"{READY}x-mem-activations-42\nx-mem-static-1234\n{READY}"
    )


def test_floats_come_back_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(500) * 10.0 ** rng.integers(-37, 38, 500)
    limits = np.finfo(np.float32)
    # As they are, not doubled: the model's product is exact, and its half is the value.
    single = np.concatenate(
        [values, [0, -0.0, 1, 9.999999, 0.99999994, limits.max / 2, limits.tiny, 1e-45, np.inf, -np.inf, np.nan]]
    ).astype(np.float32)
    program = build_core(tmp_path, identity_interface(len(single)), [HERE / "identity_model.c"])
    with running(program) as dut:
        dut.load(single.tobytes())
        results = np.asarray(dut.infer(1, 0, 5).results, np.float32)
    np.testing.assert_array_equal(results, single * np.float32(2))


def test_operators_are_timed_when_compiled_in(tmp_path: Path) -> None:
    program = build_core(tmp_path, identity_interface(), [HERE / "identity_model.c"], "-DMODEL_OP_TICKS")
    with running(program) as dut:
        dut.load(bytes(12))
        dut.infer(1, 0, 5)
        ((operator, ticks),) = dut.operators()
    assert operator == "Twice"
    assert ticks >= 0


def test_integers_and_several_outputs(tmp_path: Path) -> None:
    kinds = ("int64", "int32", "float32", "int8", "uint8", "bool")
    outputs = tuple(Tensor(name, name, (2,), (0,)) for name in kinds)
    total = sum(t.size_bytes for t in outputs)
    model = (HERE / "identity_model.c").read_text()
    a, b = model.index("    for (size_t"), model.index("}\n\nconst char *model_invoke")
    (tmp_path / "copy.c").write_text(
        f"{model[:a]}    memcpy(model_output, model_input, MODEL_OUTPUT_BYTES);\n{model[b:]}"
    )
    program = build_core(tmp_path, Interface((vector(total // 4 + 1),), outputs), [tmp_path / "copy.c"])
    data = struct.pack("<2q2i2f2b2B2?", -(2**63), 7, -(2**31), 8, 1.5, -2, -128, 127, 255, 0, True, False)
    with running(program) as dut:
        dut.load(data.ljust((total // 4 + 1) * 4, b"\0"))
        assert dut.infer(1, 0, 5).results == (
            -(2.0**63), 7, -(2.0**31), 8, 1.5, -2, -128, 127, 255, 0, 1, 0,
        )  # fmt: skip
