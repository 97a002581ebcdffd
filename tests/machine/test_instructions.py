"""What the processor is told to have."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfold.machine.instructions import multiplies_bfloat16


def _described(folder: Path, text: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16 vnni\n", True),
        ("flags : fpu amx_bf16 amx_tile\n", True),
        ("flags : fpu avx2 avx512f avx512_vnni\n", False),
        ("model name : avx512_bf16\n", False),
        ("Features : fp asimd bf16\n", False),  # of ARM: not measured
        ("", False),
    ],
)
def test_bfloat16_where_the_processor_multiplies_it(text: str, expected: bool, tmp_path: Path) -> None:
    assert multiplies_bfloat16(_described(tmp_path, text)) is expected


def test_no_bfloat16_where_nothing_is_told(tmp_path: Path) -> None:
    assert not multiplies_bfloat16(tmp_path / "missing")


@pytest.mark.parametrize("name", ["ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"])
def test_no_bfloat16_where_the_user_asks_for_older_instructions(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _described(tmp_path, "flags : avx512_bf16\n")
    assert multiplies_bfloat16(path)
    monkeypatch.setenv(name, "AVX2")
    assert not multiplies_bfloat16(path)
