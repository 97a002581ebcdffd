"""Checks that hold for every random graph."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx

from onnxfold.channels.context import find_rule
from onnxfold.errors import NothingToFoldError
from testing.quick import LOSSLESS, quick_fold
from testing.random_graphs.common import Array
from testing.random_graphs.generate import check_onnx, random_graph
from testing.random_graphs.run import draw_feeds, is_dynamic, run
from testing.widening.axes import Parts
from testing.widening.declarations import DeclaredNumbers, normalised
from testing.widening.widen import Widening

Rule = tuple[str, str, int]

#: Largest difference over the largest entry of the output.
TOLERANCE = {np.dtype(np.float16): 2e-2, np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-4}

#: Small differences become large ones here; where such an operator is, other inputs get a say.
STEPS = frozenset({
    "ArgMax", "ArgMin", "Cast", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "Less", "LessOrEqual",
    "Mod", "QuantizeLinear", "Round", "Shrink", "Sign", "ThresholdedRelu", "TopK",
})  # fmt: skip
_TRIES_WITH_STEPS = 4


@dataclass
class Outcome:
    """What one graph gave.

    Attributes
    ----------
    failures : list of str
        Kind and text; kinds are "invalid", "crash", "interface", "not finite", "lossless", "input", "seed".
    folded : bool
        Whether any channel was removed.
    nothing : bool
        Whether the library said that there is nothing to fold.
    rules : set of (domain, operator, since)
        The rules that spoke for some node.
    """

    seed: int
    failures: list[str] = field(default_factory=list)
    folded: bool = False
    nothing: bool = False
    widened: bool = False
    nodes: int = 0
    rules: set[Rule] = field(default_factory=set)

    @staticmethod
    def of(seed: int, model: onnx.ModelProto) -> Outcome:
        """What can be said of a graph before it is checked."""
        return Outcome(seed, nodes=len(model.graph.node), rules=_rules(model))


def check(seed: int, *, repeat: bool | None = None) -> Outcome:
    """Fold the graph of a seed arbitrarily, and its widened form back; `repeat`: also compare two runs bit by bit."""
    model = random_graph(seed)
    rng = np.random.default_rng([seed, 17])
    # Running the network takes longer than all else: fewer of these.
    method = str(rng.choice(list(LOSSLESS), p=[0.15, 0.45, 0.4]))
    outcome = Outcome.of(seed, model)
    _arbitrary(
        model, outcome, float(rng.uniform(0.2, 0.7)), method, repeat=seed % 10 == 0 if repeat is None else repeat
    )
    _lossless(model, outcome, method)
    return outcome


def _rules(model: onnx.ModelProto) -> set[Rule]:
    opsets = {o.domain: o.version for o in model.opset_import}
    found = set()
    for node in model.graph.node:
        rule = find_rule(node.domain, node.op_type, opsets[node.domain])
        if rule is not None:
            found.add((node.domain, node.op_type, rule.since))
    return found


def _arbitrary(model: onnx.ModelProto, outcome: Outcome, ratio: float, method: str, *, repeat: bool) -> None:
    fail, seed = outcome.failures.append, outcome.seed
    before = model.SerializeToString(deterministic=True)
    options = {"channel_ratio": ratio, "method": method, "seed": seed, "verify": seed % 3 == 0}
    try:
        result = quick_fold(model, **options)
        folded = result.model
    except NothingToFoldError:
        outcome.nothing = True
        return
    except Exception as error:  # whatever it is, it is a finding
        fail(f"crash: fold({ratio:.3f}, {method}): {type(error).__name__}: {_line(error)}")
        return
    finally:
        if model.SerializeToString(deterministic=True) != before:
            fail("input: the model that was given was modified")
    outcome.folded = any(g.folded_width < g.width for g in result.report.groups)
    if repeat:
        again = quick_fold(model, **options).model
        if again.SerializeToString(deterministic=True) != folded.SerializeToString(deterministic=True):
            fail("seed: two runs with one seed differ")
    try:
        check_onnx(folded)
    except Exception as error:
        fail(f"invalid: onnx.checker: {_line(error)}")
        return
    batches = [draw_feeds(model, seed + 1)] + ([draw_feeds(model, seed + 2, 5)] if is_dynamic(model) else [])
    try:
        expected = run(model, *batches)
    except Exception:  # a graph that writes a batch down somewhere
        batches, expected = batches[:1], run(model, batches[0])
    try:
        got = run(folded, *batches)
    except Exception as error:
        fail(f"invalid: onnxruntime: {_line(error)}")
        return
    names = [o.name for o in model.graph.output]
    if names != [o.name for o in folded.graph.output]:
        fail("interface: names of outputs changed")
    for xs, ys in zip(expected, got, strict=True):
        for name, x, y in zip(names, xs, ys, strict=True):
            if x.shape != y.shape or x.dtype != y.dtype:
                fail(f"interface: output '{name}' was {x.dtype}{x.shape}, is {y.dtype}{y.shape}")
            elif np.isfinite(x).all() and not np.isfinite(y).all():
                fail(f"not finite: output '{name}'")


def _lossless(model: onnx.ModelProto, outcome: Outcome, method: str) -> None:
    fail, seed = outcome.failures.append, outcome.seed
    try:
        widening = Widening(normalised(model), seed, numbers=DeclaredNumbers)
        wide = widening.apply("random", Parts(signed=False))
    except Exception as error:
        fail(f"crash: widening: {type(error).__name__}: {_line(error)}")
        return
    if not widening.groups:
        return
    widths = [group.size for group in widening.groups]
    outcome.widened = True
    try:
        check_onnx(wide)
        run(wide, draw_feeds(model, seed))
    except Exception as error:
        fail(f"invalid: widened: {_line(error)}")
        return
    try:
        # Every group is asked for by a glob: a method may leave some blocks of a language model alone otherwise.
        result = quick_fold(wide, ratios={"*": 0.5}, method=method, verify=False)
    except Exception as error:
        fail(f"crash: fold of the widened graph with {method}: {type(error).__name__}: {_line(error)}")
        return
    back = [g.folded_width for g in result.report.groups]
    if back != widths:
        fail(f"lossless: widths {widths} came back as {back}")
        return
    tries = _TRIES_WITH_STEPS if STEPS & {n.op_type for n in model.graph.node} else 1
    worst = {"widened": (np.inf, ""), "folded back": (np.inf, "")}
    for i in range(tries):
        feeds = draw_feeds(model, seed + 100 * i)
        try:
            reference, widened, folded = (run(m, feeds)[0] for m in (model, wide, result.model))
        except Exception as error:
            fail(f"invalid: folded back: {_line(error)}")
            return
        worst["widened"] = min(worst["widened"], _difference(model, reference, widened))
        worst["folded back"] = min(worst["folded back"], _difference(model, reference, folded))
    for what, (difference, name) in worst.items():
        if difference > 1.0:
            fail(f"lossless: {what} with {method}: output '{name}' differs by {difference:.3g} of what is allowed")
            return


def _difference(model: onnx.ModelProto, reference: list[Array], got: list[Array]) -> tuple[float, str]:
    """The largest difference of an output over its largest entry, as a multiple of the tolerance."""
    worst = (0.0, "")
    for info, a, b in zip(model.graph.output, reference, got, strict=True):
        if a.shape != b.shape:
            return np.inf, info.name
        x, y = a.astype(np.float64), b.astype(np.float64)
        scale = max(float(np.abs(x).max(initial=0.0)), 1e-6) * TOLERANCE.get(a.dtype, 1e-4)
        worst = max(worst, (float(np.abs(x - y).max(initial=0.0)) / scale, info.name))
    return worst


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
