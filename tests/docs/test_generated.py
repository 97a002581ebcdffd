"""The generated pages are those that `python -m docs.generate` writes."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from docs import generate
from onnxfold.export.tflite.context import how_written


@pytest.mark.parametrize(
    ("page", "render"),
    [
        (generate.FOLDER / "cli.md", generate.render_cli),
        (generate.FOLDER / "operators.md", generate.render_operators),
        (generate.FOLDER / "options.md", generate.render_options),
        (generate.OPTIONS_BY_NAME, generate.render_options_by_name),
    ],
)
def test_a_page_is_up_to_date(page: Path, render: Callable[[], str]) -> None:
    assert page.read_text(encoding="utf-8") == render(), "run `make docs`"


def test_the_page_of_the_tflite_writer_lists_its_operators() -> None:
    """The counts of its tests take ten seconds; `tests/export/test_conformance.py` runs these tests."""
    text = (generate.FOLDER / "tflite_ops.md").read_text(encoding="utf-8").partition("## Refused")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| ", text, re.MULTILINE))
    # A bar inside of a cell is escaped, or the row has a cell too many.
    rows = {name: cell.replace("\\|", "|") for name, cell in rows.items()}
    assert {line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("| `")} == {8}
    assert rows == how_written()
