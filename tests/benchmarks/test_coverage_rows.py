"""Rows of an earlier run stay in the page where an architecture is not measured again."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.coverage import __main__ as coverage
from benchmarks.coverage.row import Row


def test_rows_of_an_earlier_run_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured now replaces its old row and no other."""
    old = [Row(name, "dynamo", weights=1, either=0.5) for name in ("lenet5", "vgg16")]
    (tmp_path / "old.json").write_text(json.dumps([asdict(row) for row in old]))
    monkeypatch.setattr(coverage, "run", lambda *_: [Row("vgg16", "dynamo", weights=1, either=0.875)])
    paths = [f"{option}={tmp_path / name}" for option, name in (("--json", "new.json"), ("--markdown", "page.md"))]
    arguments = ["--only", "vgg16", "--form", "dynamo", f"--keep={tmp_path / 'old.json'}", *paths]
    monkeypatch.setattr(sys, "argv", ["coverage", *arguments])
    with pytest.raises(SystemExit) as ended:
        coverage.main()
    assert not ended.value.code
    found = {row["name"]: row["either"] for row in json.loads((tmp_path / "new.json").read_text())}
    assert found == {"lenet5": 0.5, "vgg16": 0.875}
    page = (tmp_path / "page.md").read_text()
    assert "Measured now: vgg16." in page
    assert "2 architectures in 1 forms" in page
