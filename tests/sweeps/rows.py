"""Rows as a sweep leaves them."""

from __future__ import annotations

import json
from typing import Any

from onnxfold.sweeps.row import Row, key_of


def row(number: int = 0, **values: Any) -> Row:
    """Return the row of a fold that is half as large and half as slow as the model, unless something else is said."""
    known: dict[str, Any] = {
        "setting": f"{number:064x}", "status": "done", "model": "net.onnx",
        "model_sha256": "ab" * 32, "goal": "sparsity 0.5", "method": "fold-ls", "seed": 0,
        "command": f"onnxfold fold net.onnx {number}.onnx --sparsity 0.5", "file": f"models/{number}.onnx",
        "weights_before": 1000, "weights": 500, "macs_before": 4_000_000, "macs": 2_000_000,
        "size_bytes_before": 4000, "size_bytes": 2048, "latency_ms_before": 3.0, "latency_ms": 1.5,
        "latency_ratio": 0.49, "latency_spread": 0.02, "agreement": 0.96, "agreement_low": 0.95, "agreement_high": 0.97,
        "agreement_samples": 256, "agreement_on": "held-out dead leaves", "relative_error": 0.1, "sparsity": 0.5,
        "finished": f"2026-01-01T00:00:{number:02d}.000+00:00", "versions": '{"onnxfold": "0.1.0", "code": "c"}',
        "latency_host": "host, onnxruntime, 1 thread",
    }  # fmt: skip
    known |= values
    key = key_of(known["setting"], json.loads(known["versions"]))
    return Row(**({"key": key} | known))


def sweep_rows() -> list[Row]:
    """Return two models by three methods at four sizes, the second method worst, and a fold that failed."""
    made = []
    for m, model in enumerate(("net.onnx", "other/wide_net.onnx")):
        for k, method in enumerate(("fold-ls", "prune-l1", "fold-ar")):
            for s in range(1, 5):
                weights, lost = 1000 - 200 * s, 0.01 * s * (1 + (k + 1) % 3) + 0.002 * m
                made.append(row(
                    len(made), model=model, method=method, goal=f"sparsity {0.2 * s:g}", weights=weights,
                    macs=4000 * weights, latency_ms=3.0 * weights / 1000, latency_ratio=weights / 1000,
                    agreement=1.0 - lost, relative_error=2 * lost,
                ))  # fmt: skip
    failure = row(99, status="failed", error_type="BudgetError", error="the <budget> cannot be reached", goal="macs 1")
    return [*made, failure]
