"""The table of seconds per test file."""

from pathlib import Path

import pytest

from benchmarks.test_times import read, table

_CASE = """<testcase classname="tests.{file}" name="{name}" time="{wall}">
<properties><property name="cpu_seconds" value="{cpu}"/></properties></testcase>"""


def _junit(path: Path, cases: list[tuple[str, str, float, float]]) -> Path:
    rows = "".join(_CASE.format(file=f, name=n, wall=w, cpu=c) for f, n, w, c in cases)
    path.write_text(f"<testsuites><testsuite>{rows}</testsuite></testsuites>")
    return path


def test_rows_are_files_and_the_dearest_comes_first(tmp_path: Path) -> None:
    after = [_junit(tmp_path / "a.xml", [("fuzz.test_fuzz", "a", 3.0, 2.0), ("test_cli", "b", 4.0, 3.5)])]
    after.append(_junit(tmp_path / "b.xml", [("test_cli", "c", 1.0, 1.0), ("test_demo", "d", 0.1, 0.1)]))
    assert table(read(after)) == [
        "| file | tests | wall s | CPU s |",
        "|---|---:|---:|---:|",
        "| tests/test_cli.py | 2 | 5.0 | 4.5 |",
        "| tests/fuzz/test_fuzz.py | 1 | 3.0 | 2.0 |",
        "| files under 1 s | 1 | 0.1 | 0.1 |",
        "| sum | 4 | 8.1 | 6.6 |",
    ]


def test_beside_an_earlier_run(tmp_path: Path) -> None:
    before, after = (_junit(tmp_path / f"{n}.xml", [("test_cli", "b", 2.0 * n, n)]) for n in (9, 2))
    assert table(read([after]), read([before]))[2] == "| tests/test_cli.py | 1 | 18.0 | 9.0 | 1 | 4.0 | 2.0 |"


def test_every_test_states_its_processor_time(request: pytest.FixtureRequest) -> None:
    """The hooks of the suite note it once a test has ended; this one asks for the start."""
    from tests import conftest

    assert request.node.stash[conftest._STARTED] <= conftest._cpu_seconds()
