"""Folding never looks at the test images that are bundled for the demo."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.resources import as_file, files
from typing import Any

import pytest

import onnxfold
from onnxfold.commands.run_demo import bundled_test_images

_IMAGES = "fashion_mnist_test"
_seen: list[str] | None = None


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    """Every file that Python opens, whoever asks for it, raises this audit event."""
    if _seen is not None and event == "open":
        _seen.append(str(arguments[0]))


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Paths of the files that are opened during a test."""
    global _seen
    if not getattr(sys, "_onnxfold_listens", False):
        sys.addaudithook(_listen)  # cannot be taken off again
        sys._onnxfold_listens = True  # type: ignore[attr-defined]
    _seen = []
    yield _seen
    _seen = None


@pytest.mark.parametrize("options", [{"method": "fold-ls"}, {"method": "fold-ar"}, {"allocation": "uniform"}])
def test_folding_opens_no_test_images(options: dict[str, Any], opened: list[str]) -> None:
    with as_file(files("onnxfold.data") / "lenet5.onnx") as model:
        result = onnxfold.fold(model, 0.5, inputs="dead-leaves", samples=16, **options)
    assert any("lenet5.onnx" in path for path in opened)  # the listening works
    assert [path for path in opened if _IMAGES in path] == []
    if result.report.inputs is not None:
        assert result.report.inputs.kind == "dead-leaves"


def test_inverting_opens_no_test_images(opened: list[str]) -> None:
    pytest.importorskip("torch")
    with as_file(files("onnxfold.data") / "lenet5.onnx") as model:
        onnxfold.fold(model, 0.5, method="fold-dir", samples=2)
    assert [path for path in opened if _IMAGES in path] == []


def test_the_demo_would_be_noticed(opened: list[str]) -> None:
    """What reads the images is seen to do so."""
    images, labels = bundled_test_images()
    assert len(images) == len(labels) == 2000
    assert any(_IMAGES in path for path in opened)
