"""The documentation site: every page is in it, and links lead to pages or to files; ``make site`` builds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"^ +- .*: ([\w.]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {*(page.name for page in (ROOT / "docs").glob("*.md")), "index.md", "changelog.md"}


@pytest.mark.parametrize(
    ("link", "source", "target"),
    [
        ("../benchmarks/latency.md", "docs/usage.md", "{}benchmarks/latency.md"),
        ("{}docs/usage.md#goals", "README.md", "usage.md#goals"),
        ("../README.md#exit-codes", "docs/usage.md", "index.md#exit-codes"),
        ("cli.md", "docs/usage.md", "cli.md"),
        ("../onnxfold/budget/devices", "docs/usage.md", "{}onnxfold/budget/devices"),
        ("{}LICENSE", "README.md", "{}LICENSE"),
        ("#methods", "docs/usage.md", "#methods"),
        ("https://arxiv.org/abs/1", "README.md", "https://arxiv.org/abs/1"),
    ],
)
def test_links_hold_in_the_site(link: str, source: str, target: str) -> None:
    hooks = pytest.importorskip("docs.site_hooks", reason="the extra docs is not installed")
    address = "https://host/it/blob/main/"
    assert hooks.led(link.format(address), source, "https://host/it") == target.format(address)
