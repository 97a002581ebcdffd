"""Gram matrices of wide layers: the lower triangle, the same at any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfold.machine.threads import ONE_BLAS_THREAD
from onnxfold.passes.repair import compensate
from onnxfold.passes.repair.compensate import lower_gram, ridge_regression


@pytest.mark.parametrize("width", [1, 5, 8, 9, 16, 30])
def test_the_lower_triangle_is_the_gram_matrix(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compensate, "_BLOCK", 8)
    columns = np.random.default_rng(width).standard_normal((40, width))
    np.testing.assert_allclose(np.tril(lower_gram(columns)), np.tril(columns.T @ columns), rtol=1e-12, atol=1e-12)


def test_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = np.random.default_rng(0).standard_normal((300, 600)).astype(np.float32)
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(compensate, "usable_cores", lambda threads=threads: threads)
        with ONE_BLAS_THREAD:
            found.append(lower_gram(columns).tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize("samples", [20, 200])
def test_regression_needs_the_lower_triangle_alone(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer samples than columns, and with more."""
    random = np.random.default_rng(0)
    patches, residual = (random.standard_normal((samples, n)).astype(np.float32) for n in (60, 3))
    whole = ridge_regression(patches.copy(), residual.copy(), 0.1)
    monkeypatch.setattr(compensate, "_BLOCK", 16)
    blocks = ridge_regression(patches.copy(), residual.copy(), 0.1)
    np.testing.assert_allclose(blocks, whole, rtol=1e-4, atol=1e-6)
