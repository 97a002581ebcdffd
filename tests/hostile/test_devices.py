"""Device profiles from anywhere."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import onnx
import pytest

from onnxfold.budget.devices import load_device
from onnxfold.errors import ConfigError
from testing import models
from tests.hostile.conftest import Command

GOOD = (files("onnxfold.budget") / "devices" / "esp-eye.toml").read_text()


def _with(key: str, value: str) -> bytes:
    lines = [f"{key} = {value}" if line.startswith(f"{key} ") else line for line in GOOD.splitlines()]
    assert f"{key} = {value}" in lines
    return "\n".join(lines).encode()


BAD = {
    "nested arrays": (b"a = " + b"[" * 100_000, "nested too deeply"),
    "nested tables": (b"a = " + b"{a = " * 100_000, "nested too deeply"),
    "binary": (os.urandom(1000).replace(b"\n", b"") + b"\xff", "not TOML"),
    "empty": (b"", "lacks"),
    "digits": (_with("flash_bytes", "9" * 5000), "not TOML"),
    "beyond floats": (_with("flash_bytes", "1" + "0" * 400), "which is not a whole number"),
    "fraction": (_with("usable_ram_fraction", "1" + "0" * 400), "which is not a fraction"),
    "infinite": (_with("usable_ram_fraction", "inf"), "which is not a fraction"),
    "nan": (_with("usable_ram_fraction", "nan"), "which is not a fraction"),
    "list for a number": (_with("ram_bytes", "[1]"), "which is not a whole number"),
    "date for a number": (_with("ram_bytes", "1979-05-27"), "which is not a whole number"),
    "controls": (_with("title", '"\\u001b[2J\\u202e"') + b'\n"\\u001b[2J\\n" = 3\n', "does not say|unknown|not"),
    "large": (GOOD.encode() + b"#" * (1 << 20), "larger than"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_profiles(case: str, tmp_path: Path) -> None:
    content, words = BAD[case]
    path = tmp_path / "board.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as error:
        load_device(path)
    assert str(error.value).isprintable()


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "folder.toml").mkdir()
    for path in (tmp_path / "fifo.toml", tmp_path / "folder.toml", tmp_path / f"{'n' * 300}.toml", "a\0.toml"):
        with pytest.raises(ConfigError):
            load_device(path)


def test_on_the_command_line(tmp_path: Path, command: Command) -> None:
    model, board = tmp_path / "m.onnx", tmp_path / "b.toml"
    onnx.save(models.chain_conv(0), str(model))
    board.write_bytes(BAD["nested arrays"][0])
    for arguments in (("fold", model, tmp_path / "o.onnx"), ("bench", model)):
        done = command(*arguments, "--device", board)
        assert done.code == 2
        assert "nested too deeply" in done.line()
