"""The page of real files: what is folded, what is refused, and which verdicts vouch for what is lost."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.real import images
from benchmarks.real.page import render, vouches
from onnxfold.graph.run.session import InputInfo

FOLD = {"file": "a", "code": 0, "reason": "", "verdict": "", "estimate": "", "seconds": 1.0}


def _judged(printed: str, state: str) -> dict[str, Any]:
    return {
        **FOLD,
        "verdict": printed,
        "inputs": "defaults",
        "samples": 50,
        "true": f"verdict: {state}",
        "state": state,
    }


def test_a_verdict_vouches_where_it_says_keeps_and_nothing_is_kept() -> None:
    assert vouches(_judged("verdict: keeps 98% of it", "destroyed"))
    assert not vouches(_judged("verdict: keeps 98% of it", "kept"))
    assert not vouches(_judged("verdict: damaged: keeps only 60% of it", "destroyed"))
    assert not vouches(_judged("verdict: not known: few samples", "damaged"))


def test_the_page_counts_what_folds() -> None:
    files = [
        {**FOLD, "runs": "yes"}, {**FOLD, "code": 2, "reason": "error: no | group", "runs": ""},
        {**FOLD, "code": None, "reason": "error: not done in 25 s", "runs": ""},
    ]  # fmt: skip
    page = render({"files": files, "images": [_judged("verdict: keeps 98% of it", "destroyed")]})
    assert "Of 3 files, 1 fold, 1 of which run in onnxruntime; 1 are refused, and 1 did not end in time." in page
    assert "no / group" in page
    assert "Of 1 verdicts on the 1 networks measured so far, 1 vouches." in page


def test_images_are_shown_or_judge_and_never_both(tmp_path: Any, monkeypatch: Any) -> None:
    pixels = np.arange(12 * 32 * 32 * 3, dtype=np.uint64).reshape(12, 32, 32, 3) % 251
    np.savez(tmp_path / "cifar10_test.npz", x=pixels.astype(np.uint8))
    monkeypatch.setitem(images.FORMS, "net", images.Form((0.0, 255.0), source="cifar10", shown=8, held_out=4))
    shown, held_out = images.real_inputs("net", [InputInfo("x", np.dtype(np.float32), (1, 3, 32, 32))], tmp_path)
    assert (shown["x"].shape, held_out["x"].shape) == ((8, 3, 32, 32), (4, 3, 32, 32))
    assert not any((image == shown["x"]).all(axis=(1, 2, 3)).any() for image in held_out["x"])
    assert 0.9 < shown["x"].max() <= 1.0
