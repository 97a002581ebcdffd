"""What is missing is said with the line that installs it."""

from pathlib import Path

import pytest

from onnxfold.edge_bench.boards import qemu
from onnxfold.edge_bench.runners.qemu_runner import QemuRunner
from onnxfold.edge_bench.runners.serial_runner import SerialRunner


def test_nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(qemu, "find_spec", lambda _: None)
    said = QemuRunner().missing()
    assert said == (
        "arm-none-eabi-gcc, make, qemu-system-arm, emx-onnx-cgen missing: "
        "apt install gcc-arm-none-eabi libnewlib-arm-none-eabi make qemu-system-arm && "
        "pip install 'emx-onnx-cgen>=1.4,<1.5' ai-edge-litert flatbuffers"
    )


def test_one_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for program in ("arm-none-eabi-gcc", "make"):
        (tmp_path / program).write_text("#!/bin/sh\necho 'a program 1.2'\necho more\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(qemu, "find_spec", lambda _: object())
    assert qemu.missing_tools() == "qemu-system-arm missing: apt install qemu-system-arm"


def test_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "compiler"
    program.write_text("#!/bin/sh\necho 'compiler 1.2'\necho more\n")
    program.chmod(0o755)
    assert qemu.version_of(str(program)) == "compiler 1.2"
    assert qemu.version_of(str(tmp_path / "none")) == str(tmp_path / "none")


def test_serial_needs_pyserial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfold.edge_bench.runners.serial_runner.find_spec", lambda _: None)
    assert SerialRunner("/dev/none").missing() == "pyserial missing: pip install pyserial"
