"""A folded folder runs in onnxruntime-genai, with its past, and writes what onnxruntime alone writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxfold
from testing.generate import by_genai, by_loop
from testing.model_folders import write_genai_folder, write_optimum_folder

pytest.importorskip("onnxruntime_genai")

PROMPT, LENGTH = (1, 5, 9, 13), 24


def test_a_folded_folder_writes_as_onnxruntime_does(tmp_path: Path) -> None:
    source = write_genai_folder(tmp_path / "in")
    result = onnxfold.fold(source, channel_ratio=0.5, method="fold-naive", cluster="kmeans", verify=False)
    assert [(g.width, g.folded_width) for g in result.report.groups] == [(6, 3), (48, 24)] * 2
    folded = result.save(tmp_path / "out")
    written = [by_genai(folder, PROMPT, LENGTH) for folder in (source, folded)]
    assert written == [by_loop(folder, PROMPT, LENGTH) for folder in (source, folded)]
    assert all(len(set(tokens[len(PROMPT) :])) > 3 for tokens in written)
    assert written[0] != written[1]


def test_a_folder_of_optimum_writes_with_its_past(tmp_path: Path) -> None:
    source = write_optimum_folder(tmp_path / "in")
    folded = onnxfold.fold(source, channel_ratio=0.25, method="fold-ar", verify=False).save(tmp_path / "out")
    written = by_loop(folded, PROMPT, LENGTH)
    assert written == by_loop(folded, PROMPT, LENGTH, keeps_past=False)
    assert len(set(written)) > 3
