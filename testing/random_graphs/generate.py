"""Valid random models by seed."""

from __future__ import annotations

import numpy as np
import onnx

from testing.random_graphs.build import build
from testing.random_graphs.common import UNKNOWN_TO_ONNX, DoesNotFitError, GeneratorError
from testing.random_graphs.run import draw_feeds, run

_ATTEMPTS = 40


def check_onnx(model: onnx.ModelProto) -> None:
    """Run onnx's full check, as far as onnx knows the operators."""
    if not any(n.op_type in UNKNOWN_TO_ONNX for n in model.graph.node):
        onnx.checker.check_model(model, full_check=True)


def why_invalid(model: onnx.ModelProto, seed: int) -> str:
    """Return what is wrong with a generated graph, '' if nothing is."""
    try:
        check_onnx(model)
        (outputs,) = run(model, draw_feeds(model, seed))
    except Exception as error:  # onnxruntime's classes are not public
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if not all(np.isfinite(y).all() and np.abs(y).max(initial=0) < 1e4 for y in outputs):
        return "an output is not finite"
    if all(float(np.ptp(y)) < 1e-6 for y in outputs):
        return "the outputs are constant"
    return ""


def random_graph(seed: int) -> onnx.ModelProto:
    """Return a valid random model; the same for the same seed.

    Raises
    ------
    GeneratorError
        If many derived seeds in a row give none.
    """
    reasons = []
    for attempt in range(_ATTEMPTS):
        try:
            model = build(seed, attempt)
        except (DoesNotFitError, GeneratorError):
            continue
        reason = why_invalid(model, seed)
        if not reason:
            return model
        reasons.append(reason)
    raise GeneratorError(f"seed {seed}: no valid graph: {reasons[-3:]}")


def operators(model: onnx.ModelProto) -> set[tuple[str, str]]:
    """Domain and name of every operator."""
    return {(n.domain, n.op_type) for n in model.graph.node}
