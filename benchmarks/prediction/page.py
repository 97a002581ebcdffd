"""The page."""

import math
from collections.abc import Callable, Sequence

from benchmarks.accuracy.store import environment
from benchmarks.coverage.text import table_row
from benchmarks.prediction.cells import Row
from benchmarks.prediction.regression import Features, Judged, fit, left_out, origin
from onnxfold.fidelity.estimate import DATA, GENERATED, REGRESSIONS, Regression, features, logit
from onnxfold.report import Signs

_USAGE = "python -m benchmarks.prediction --data DATA --models MODELS --out OUT --page benchmarks/prediction.md"
_HOW = {"auto": "default", "dead-leaves": "dead leaves", "data": "128 images"}
_ORIGINS = {GENERATED: "generated inputs", DATA: "128 unlabeled images"}
_TERMS = (
    "logit of the agreement on the inputs of the fit (on held-out ones if these are dead leaves)",
    "logit of the agreement on held-out inputs",
    "log of the relative error on held-out inputs",
)
_COLUMNS = (
    "network", "fitted on", "removed", "on fitted", "held-out", "curves", "estimate", "interval", "agreement",
)  # fmt: skip
_BANDS = ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 0.95), (0.95, 1.0001))
#: Signs by name, each as a feature.
_SIGNS: dict[str, Callable[[Signs], float]] = {
    "agreement on the inputs of the fit (on held-out ones if these are dead leaves)": lambda s: features(s)[1],
    "agreement on held-out inputs": lambda s: logit(s.held_out_agreement, s.held_out_samples),
    "error on held-out inputs": lambda s: math.log(max(s.held_out_error, 1e-3)),
    "sum of the error curves": lambda s: math.log((s.curve_error or 0.0) + 1e-3),
}


def render(rows: Sequence[Row]) -> str:
    """Return the page of rows."""
    machine, versions = environment(), sorted({row["code"] for row in rows})
    parts = {name: [row for row in rows if origin(row) == name] for name in REGRESSIONS}
    judged = {name: left_out(part) for name, part in parts.items() if part}
    found = {name: fit(part) for name, part in parts.items() if part}
    every = [j for part in judged.values() for j in part]
    lines = [
        "# Predicted agreement",
        "",
        f"Reproduce with `{_USAGE}`.",
        "",
        "A fold estimates its top-1 agreement with the original on data that it has not seen, with an 80 % interval.",
        "Every row is one fold. *Agreement* is measured on real test images: 1,000 of Fashion-MNIST or CIFAR-10, and",
        "the 250 of imagenet_even_500.zip whose class is a multiple of 4. *Estimate* and *interval* come from a",
        "regression in which no file of the same training took part: neither this one nor its other export.",
        "",
        f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}; commit {machine['commit']}; the rows "
        f"were measured with {len(versions)} version{'s' if len(versions) > 1 else ''} of the code "
        f"({', '.join(versions)}).",
        "",
        "## How well it holds for networks that had no part in it",
        "",
        table_row(["folds", "files", "trainings", "cells", "in the interval", "mean absolute error, points", "bias"]),
        table_row(["---"] * 7),
        *(_summary(f"on {_ORIGINS[name]}", part) for name, part in judged.items()),
        _summary("all", every),
        "",
        "By the agreement that was measured, all cells:",
        "",
        table_row(["agreement", "cells", "in the interval", "mean absolute error, points", "bias"]),
        table_row(["---"] * 5),
        *_bands(every),
        "",
        "Where a fold keeps less than half of the answers, the estimate is too high: few cells are there. ImageNet has",
        "few cells, too, and a regression without them knows of no network with 1,000 classes.",
        "",
        "## The regressions",
        "",
        *(f"- Folds on {_ORIGINS[name]}: {_formula(table)}." for name, table in found.items()),
        "",
        "The interval adds the 10 % and the 90 % quantile of what regressions without the training in question miss.",
        "",
        "What other signs give for folds on generated inputs, each validated in the same way:",
        "",
        *_ablation(parts[GENERATED]),
        "",
        "## Cells",
        "",
        table_row([*_COLUMNS, ""]),
        table_row(["---"] * (len(_COLUMNS) + 1)),
        *map(_cell, every),
    ]
    return "\n".join(lines) + "\n"


def _summary(name: str, judged: Sequence[Judged]) -> str:
    files, trainings = ({row[key] for row, _, _ in judged} for key in ("network", "training"))
    return table_row([name, str(len(files)), str(len(trainings)), str(len(judged)), *_quality(judged)])


def _bands(judged: Sequence[Judged]) -> list[str]:
    found = []
    for low, high in _BANDS:
        within = [j for j in judged if low <= j[0]["agreement"] < high]
        if within:
            name = f"{low:.0%} to {min(high, 1.0):.0%}"
            found.append(table_row([name, str(len(within)), *_quality(within)]))
    return found


def _quality(judged: Sequence[Judged]) -> list[str]:
    inside = sum(low <= row["agreement"] <= high for row, _, (low, high) in judged)
    missed = [100 * (estimate - row["agreement"]) for row, estimate, _ in judged]
    if not missed:
        return ["", "", ""]
    error = math.fsum(map(abs, missed)) / len(missed)
    return [f"{inside / len(judged):.0%}", f"{error:.1f}", f"{math.fsum(missed) / len(missed):+.1f}"]


def _formula(found: Regression) -> str:
    constant, *others = found.coefficients
    terms = "".join(f" {c:+.2f} x {name}" for c, name in zip(others, _TERMS, strict=False))
    return f"logit of the agreement = {constant:.2f}{terms}; interval {found.spread[0]:+.2f} to {found.spread[1]:+.2f}"


def _ablation(rows: Sequence[Row]) -> list[str]:
    names = list(_SIGNS)
    lines = [table_row(["signs", "in the interval", "mean absolute error, points", "bias"]), table_row(["---"] * 4)]
    lines.append(table_row(["**those of the estimate**", *_quality(left_out(rows))]))
    choices = [[n] for n in names] + [names[:2], [names[0], names[2]], [names[1], names[2]], names[:3], names]
    return lines + [table_row([", ".join(c), *_quality(left_out(rows, _features(c)))]) for c in choices]


def _features(names: Sequence[str]) -> Features:
    return lambda signs: (1.0, *(_SIGNS[name](signs) for name in names))


def _cell(judged: Judged) -> str:
    row, estimate, (low, high) = judged
    signs = Signs(**row["signs"])
    return table_row(
        [
            row["network"],
            _HOW[row["asked"]],
            f"{row['removed']:.0%}",
            "-" if signs.fitted_agreement is None else f"{signs.fitted_agreement:.1%}",
            f"{signs.held_out_agreement:.1%}",
            "-" if signs.curve_error is None else f"{signs.curve_error:.3f}",
            f"{estimate:.1%}",
            f"{low:.0%} to {high:.0%}",
            f"{row['agreement']:.1%}",
            "" if low <= row["agreement"] <= high else "outside",
        ]
    )
