"""The Markdown page of the coverage benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.coverage.row import ENOUGH, MOST, SPARSITY, STEPS, TOLERANCE, Row
from benchmarks.coverage.text import decimals, percent, power_of_ten, table_row, yes_or_no

_HOW = """
For every architecture of testing.zoo and every form (language models: both exporters of torch with free lengths;
graphs as onnxruntime-genai's builder writes them): share of the conv/linear weights in fold groups, fold at
sparsity 0.3, run of the saved file in onnxruntime on inputs that the fold did not see, and, after every channel has
been copied (twice; one to three times), whether folding gives the original function back. Every architecture runs in
a process of its own with a limit of processor time per form; an exception is a row of the table.
"""


def summary(rows: list[Row]) -> list[str]:
    """Return the lines that say how it went overall."""
    names = list(dict.fromkeys(r.name for r in rows))
    low = sorted({r.name for r in rows if r.either is not None and r.either < ENOUGH}, key=names.index)
    folded = [r for r in rows if r.reached is not None]
    exact = [r for r in rows if r.lossless is not None]
    uneven = [r for r in rows if r.uneven is not None]
    inspected = [r for r in rows if r.either is not None]
    lines = [
        f"- {len(names)} architectures in {len({r.form for r in rows})} forms, {len(rows)} exported files wanted, "
        f"{sum('export' not in r.errors for r in rows)} exported",
        f"- {len(names) - len(low)} architectures have at least {ENOUGH:.0%} of their conv/linear weights in groups in "
        f"every form; below: {', '.join(low) or 'none'}",
        f"- sparsity {SPARSITY} requested: {len(folded)} of {len(inspected)} files folded, "
        f"{sum(abs((r.reached or 0.0) - SPARSITY) <= 0.01 for r in folded)} within 0.01 of it; "
        f"{sum(bool(r.valid) for r in rows)} folded files run in onnxruntime with equal shapes and finite outputs",
        f"- every channel doubled, and folded by half: {sum((r.lossless or 0) <= TOLERANCE for r in exact)} of "
        f"{len(exact)} give the original outputs back to {TOLERANCE:g} of their largest entry; "
        f"with one to three copies of each: {sum((r.uneven or 0) <= TOLERANCE for r in uneven)} of {len(uneven)}",
    ]
    spoken = [r.without_words for r in rows if r.without_words is not None]
    if spoken:
        lines.append(
            f"- language models, vocabulary and heads of a cache aside: {sum(s >= MOST for s in spoken)} of "
            f"{len(spoken)} files have at least {MOST:.0%} of these weights in groups, the least {min(spoken):.1%}"
        )
    errors = Counter(step for r in rows for step in r.errors)
    if errors:
        lines.append("- exceptions: " + ", ".join(f"{errors[s]} in {s}" for s in STEPS if errors[s]))
    return lines


def markdown(rows: list[Row], seconds: float, environment: list[str], again: Sequence[str] = ()) -> str:
    """Return the whole report; rows `again` were measured now, in so many seconds, where others are older."""
    names = list(dict.fromkeys(r.name for r in rows))
    forms = list(dict.fromkeys(r.form for r in rows))
    by_case = {(r.name, r.form): r for r in rows}
    lines = ["# Coverage of architectures", "", " ".join(_HOW.split()), ""]
    lines += [f"Written by `python -m benchmarks.coverage` in {seconds / 60:.0f} minutes.", ""]
    if again:
        lines += [f"Measured now: {', '.join(again)}. The other rows are those of an earlier run (`--keep`).", ""]
    lines += [*summary(rows), ""]
    lines += ["## Reasons", "", "Weights in no group on either side, as part of all conv/linear weights of all files:"]
    lines += ["", "| share | files | reason |", "| ---: | ---: | --- |", *_top_reasons(rows), ""]
    lines += ["## Architectures", ""]
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        groups.setdefault(tuple(f for f in forms if (name, f) in by_case), []).append(name)
    for own, members in groups.items():
        lines += [*_architectures(by_case, members, own), ""]
    lines += [*_below(rows), *_exceptions(rows)]
    for form in forms:
        lines += ["", f"## {form}", ""]
        head = [
            "architecture",
            "groups",
            "outputs",
            "inputs",
            "either",
            "requested",
            "reached",
            "valid",
            "doubled",
            "1 to 3",
        ]
        lines += [table_row([*head, "notes"]), table_row(["---"] + ["---:"] * (len(head) - 1) + ["---"])]
        for r in (by_case[n, form] for n in names if (n, form) in by_case):
            cells = [r.name, str(r.groups), *map(percent, (r.outputs, r.inputs, r.either)), f"{SPARSITY:g}"]
            remarks = [*(f"{step}: {text}" for step, text in r.errors.items()), *r.notes]
            cells += [
                decimals(r.reached),
                yes_or_no(r.valid),
                power_of_ten(r.lossless),
                power_of_ten(r.uneven),
                "; ".join(remarks),
            ]
            lines.append(table_row(cells))
    lines += ["", "## Environment", "", *environment]
    return "\n".join(lines) + "\n"


def _architectures(by_case: Mapping[tuple[str, str], Row], names: list[str], forms: Sequence[str]) -> list[str]:
    """Return the table of architectures that have the same forms."""
    speak = any(by_case[n, f].without_words is not None for n in names for f in forms)
    head = ["architecture", "weights", *(f"either, {f}" for f in forms)]
    head += ["without vocabulary and cache"] * speak + ["sparsity", "valid", "worst after widening"]
    lines = [table_row(head), table_row(["---", "---:"] + ["---:"] * (len(head) - 2))]
    for name in names:
        mine = [by_case[name, form] for form in forms]
        reached = sorted({decimals(r.reached) for r in mine if r.reached is not None})
        spread = reached[0] if len(reached) == 1 else f"{reached[0]} to {reached[-1]}" if reached else "-"
        exact = [max(r.lossless, r.uneven or 0.0) for r in mine if r.lossless is not None]
        worst = power_of_ten(max(exact)) if exact else "-"
        cells = [name, f"{max(r.weights for r in mine):,}", *(percent(r.either) for r in mine)]
        if speak:
            cells.append(percent(min((r.without_words for r in mine if r.without_words is not None), default=None)))
        lines.append(table_row([*cells, spread, f"{sum(bool(r.valid) for r in mine)} of {len(mine)}", worst]))
    return lines


def _top_reasons(rows: list[Row], limit: int = 15) -> list[str]:
    held, files = Counter[str](), Counter[str]()
    total = sum(r.weights for r in rows)
    for r in rows:
        for reason, share in r.held:
            held[reason] += round(share * r.weights)
            files[reason] += 1
    return [table_row([f"{n / total:.2%}", str(files[reason]), reason]) for reason, n in held.most_common(limit)]


def _below(rows: list[Row]) -> list[str]:
    lines = [
        f"## Below {ENOUGH:.0%}",
        "",
        table_row(["file", "either", "held back by"]),
        table_row(["---", "---:", "---"]),
    ]
    for r in rows:
        if r.either is not None and r.either < ENOUGH:
            why = "; ".join(f"{share:.0%}: {reason}" for reason, share in r.held[:3])
            lines.append(table_row([f"{r.name}, {r.form}", percent(r.either), why]))
    return lines


def _exceptions(rows: list[Row]) -> list[str]:
    lines = ["", "## Exceptions and differences", ""]
    lines += [table_row(["file", "step", "text"]), table_row(["---", "---", "---"])]
    for r in rows:
        lines += [table_row([f"{r.name}, {r.form}", step, text]) for step, text in r.errors.items()]
        for step, value in (
            ("normalised", r.normalised),
            ("widened", r.widened),
            ("doubled", r.lossless),
            ("1 to 3", r.uneven),
        ):
            if value is not None and value > TOLERANCE:
                lines.append(table_row([f"{r.name}, {r.form}", step, f"difference {value:.1e} of the largest output"]))
    return lines
