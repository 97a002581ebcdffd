"""Reports to be rendered: rich, bare, broken, and large."""

from __future__ import annotations

import math

import numpy as np

from onnxfold.inputs.images.png_grid import png_grid
from onnxfold.report import (
    AccuracyRecord,
    Fidelity,
    FidelityReport,
    FoldReport,
    LatencyRecord,
    ModelSize,
    PassRecord,
    Refusal,
)
from onnxfold.report.fold_report import GroupRecord, InputRecord
from onnxfold.report.records import CorrelationHistogram, Diagnostics, ErrorCurve, VarianceRatio

NASTY = "<script>alert('x')</script>&\"'><img src=x onerror=alert(1)>"
SECTION_NAMES = (
    "numbers", "fidelity", "inputs", "widths", "errors", "variances", "correlations", "refusals", "passes",
    "reproduce",
)  # fmt: skip


def bare() -> FoldReport:
    """Return a report with nothing but what it cannot be without."""
    size = ModelSize(1000, None, 4200)
    return FoldReport("fold-naive", "uniform", "sparsity 0.5", size, ModelSize(500, None, 2200), [], [])


def diagnostics(names: list[str], width: int = 64) -> Diagnostics:
    counts = tuple(max(0, 40 - 4 * abs(i - 10)) for i in range(20))
    return Diagnostics(
        tuple(
            ErrorCurve(
                name,
                (1, width // 4, width // 2, width),
                (1.5, 0.2, 0.01, 0.0),
                *((width // 2, 0.01), (width, 0.0))[i % 2],
            )
            for i, name in enumerate(names)
        ),
        tuple(VarianceRatio(name, 0.9**i, 0.8 * 0.9**i, 1.1 * 0.9**i, width, i) for i, name in enumerate(names)),
        tuple(CorrelationHistogram(name, counts, counts[::-1]) for name in names),
        samples=64,
    )


def rich(names: list[str] | None = None) -> FoldReport:
    """Return a report with everything."""
    names = names or ["/stem/conv/Conv", "/layer1/conv1/Conv", "/classifier/fc1/Gemm"]
    groups = [GroupRecord(name, 64, 64 - 8 * (i % 8), (name,), i % 3) for i, name in enumerate(names)]
    return FoldReport(
        method="fold-ls",
        allocation="global",
        requested="sparsity 0.5",
        before=ModelSize(2801962, 139299328, 11220491),
        after=ModelSize(1399918, 116570656, 5612123),
        groups=groups,
        refusals=[
            Refusal("/fc/Gemm", "Gemm", "outputs of weight 'fc.weight' (axis 0)", "it is the model's output", 2560)
        ],
        passes=[PassRecord("FoldConstants", False, 0.001), PassRecord("RepairLeastSquares", True, 12.3456)],
        cluster="elimination",
        repair="least-squares",
        inputs=InputRecord("dead-leaves", 512, "the model has no BatchNormalization"),
        fidelity=FidelityReport(
            [Fidelity("logits", 0.147, 0.975, (0.948, 0.988), 256)], 256, "held-out dead leaves", 0.92, 0.91
        ),
        notes=["reached sparsity 0.499 instead of 0.5"],
        config={"sparsity": 0.5, "method": "fold-ls", "allocation": "global", "seed": 0},
        seconds=31.4,
        version="0.1.0",
        model="/models/resnet18_w32.onnx",
        versions={"numpy": "2.0.0", "onnx": "1.17.0"},
        diagnostics=diagnostics(names),
        latency=LatencyRecord(3.47e-3, 2.08e-3, 0.6, 0.02, 31, 1),
        accuracy=AccuracyRecord(0.92, 0.911, 500, 0.9, (-0.4, 2.2), 1.0),
        model_sha256="5e" * 32,
        picture=png_grid(np.linspace(0.0, 1.0, 8 * 3 * 16 * 16).reshape(8, 3, 16, 16), columns=4),
    )


def nasty() -> FoldReport:
    """Return a report in which every text is an attempt to get out of it."""
    report = rich([NASTY, f"{NASTY}\x00\x1b\ud800", "通道/卷积层_é\u0301_🙂"])
    report.method = report.allocation = report.requested = report.cluster = report.repair = report.version = NASTY
    report.model = f"/tmp/{NASTY.replace('/', '')}"
    report.refusals = [Refusal(NASTY, NASTY, NASTY, NASTY, 3)]
    report.passes = [PassRecord(NASTY, True, 0.1), PassRecord(NASTY, False, 0.1)]
    report.inputs = InputRecord(NASTY, 3, NASTY)
    report.fidelity = FidelityReport([Fidelity(NASTY, 0.1, None)], 1, NASTY)
    report.notes = [NASTY]
    report.config = {"sparsity": 0.5, "keep": [NASTY], "device": NASTY}
    report.versions = {NASTY: NASTY}
    return report


def without_numbers() -> FoldReport:
    """Return a report of a model whose weights are broken."""
    report = rich(["a", "b"])
    nan, inf = math.nan, math.inf
    report.before, report.after = ModelSize(0, None, 0), ModelSize(0, None, 0)
    report.fidelity = FidelityReport([Fidelity("y", nan, nan), Fidelity("z", inf, None)], 2, "noise", None, nan)
    report.diagnostics = Diagnostics(
        (ErrorCurve("a", (), (), 1, nan), ErrorCurve("b", (1, 2), (inf, nan), 1, inf)),
        (
            VarianceRatio("a", nan, nan, nan, 0, 4),
            VarianceRatio("b", inf, 0.0, inf, 4, 0),
            VarianceRatio("c", 1e-30, 0.0, 1e30, 4, 0),
        ),
        (CorrelationHistogram("a", (0,) * 20, (0,) * 20),),
        samples=0,
    )
    return report


def large() -> FoldReport:
    """Return a report of 200 groups with long names, and as many refusals."""
    names = [f"/encoder/layers.{i}/{'verylongmodulename' * 4}/self_attention/Conv" for i in range(200)]
    report = rich(names)
    report.before = ModelSize(7_000_000_000, 1_400_000_000_000, 28_000_000_000)
    report.after = ModelSize(3_500_000_000, 700_000_000_000, 14_000_000_000)
    report.refusals = [Refusal(name, "Conv", "inputs", "unknown operator " + "x" * 90, 10**9) for name in names]
    return report
