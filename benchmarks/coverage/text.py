"""Cells and lines of text."""

from __future__ import annotations

from benchmarks.coverage.row import Row


def progress_line(row: Row) -> str:
    parts = [f"{row.name:<18} {row.form:<12}", f"either {percent(row.either)}", f"sparsity {decimals(row.reached)}"]
    parts += [
        f"valid {yes_or_no(row.valid)}",
        f"lossless {power_of_ten(row.lossless)} {power_of_ten(row.uneven)}",
        f"{row.seconds:.1f} s",
    ]
    return "  ".join(parts) + "".join(f"  {step}: {text[:100]}" for step, text in row.errors.items())


def table_row(values: list[str]) -> str:
    return "| " + " | ".join(v.replace("|", "\\|") for v in values) + " |"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def decimals(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def power_of_ten(value: float | None) -> str:
    return "-" if value is None else f"{value:.0e}"


def yes_or_no(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "NO"
