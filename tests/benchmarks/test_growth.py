"""The page of the growth of a fold's time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import growth


@pytest.mark.parametrize("power", [0.0, 1.0, 3.0])
def test_the_exponent_is_the_slope_of_the_largest_sizes(power: float) -> None:
    sizes = [8, 64, 256, 1024]
    assert growth.exponent(sizes, [100.0, *(1e-3 * size**power for size in sizes[1:])]) == pytest.approx(power)


def test_a_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "measure", lambda path, code, limit: (float(path.stem.split("_")[1]) ** 2, 0.5))
    page = tmp_path / "growth.md"
    monkeypatch.setattr(sys, "argv", ["growth", "--axes", "channels", "--out", str(page)])
    with pytest.raises(SystemExit) as ended:
        growth.main()
    assert ended.value.code == 0
    assert "Exponent: 2.00, at most 3." in page.read_text()
    monkeypatch.setattr(growth, "measure", lambda path, code, limit: (float(path.stem.split("_")[1]) ** 4, 0.5))
    with pytest.raises(SystemExit) as ended:
        growth.main()
    assert "channels: 4.00" in str(ended.value.code)
