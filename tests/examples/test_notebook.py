"""The notebook runs, and prints what it shows, but for digits."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from testing.transcripts import masked

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "fold.ipynb"


def _printed(notebook: Any) -> list[str]:
    """Return what every cell of code printed or returned."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        masked("".join(o.get("text") or o["data"]["text/plain"] for o in cell.outputs if o.get("name") != "stderr"))
        for cell in cells
    ]


@pytest.mark.long
def test_the_notebook_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the extra dev is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the extra dev is not installed")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shown = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(shown)
    run = nbformat.from_dict(shown)
    for cell in run.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbclient.NotebookClient(run, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert _printed(run) == _printed(shown)
    assert (tmp_path / "demo" / "report.html").is_file()
