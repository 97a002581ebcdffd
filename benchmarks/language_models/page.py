"""The page: a table per model, what decoders write, and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.coverage.text import table_row
from benchmarks.language_models.generation import PROMPTS
from benchmarks.language_models.row import Row
from benchmarks.language_models.text import LENGTH, WINDOWS

_INTRODUCTION = f"""# Language models

`benchmarks/language_models.json` keeps the rows, so that each can be measured alone, with any method and options:

    python -m benchmarks.language_models --text wikitext2_valid.raw.txt --decoder smollm2_genai \\
        --name SmolLM2-135M-Instruct --methods fold-ls --sparsity 0.2 --inputs none --examples --speed \\
        --page benchmarks/language_models.md

Weights that were removed are a part of all, the table of words included and a tied one counted once. Where a fold was
shown nothing, it ran on what the model writes itself, or on tokens by frequency; where it was shown text, on {WINDOWS}
windows of {LENGTH} tokens, the front of WikiText-2's validation text, and what stands behind is measured; `fold-ls`
then also read 16 sequences of 256 tokens that the model wrote itself. Windows hold 1,024 tokens and do not overlap.
Python's own reference (`pydoc_data.topics`) judges, too. Five things in the default were chosen by both texts: how far
texts are in doubt, of 0, 0.2, 0.5 and 0.75; that positions count by length; that what stands between given texts, a
quarter of all tokens, is in sequences of 256 and not of 512; that what queries lose counts 0.6 times and not once, all
at 10 %; and that a model to which nothing is shown writes sequences of 128 tokens, not of 64 (at 10 %) or 256 (at 10 to
30 %). How much more common rare words are in other texts than in what a model writes was counted in both.
Encoders are compared on lines of 40 to 300 characters: the part of them whose nearest neighbour stays the same, and
Spearman's correlation of all similarities; a line is the mean of its states, brought to length one. Seconds are of
processor time, on a machine that other jobs used, too; tokens per second are taken in turn before and after, so their
ratio means more than they do.

`prune-l2`, `wanda-sp`, `flap`, `slicegpt`, `shortgpt` and `fold-ar` (the published recipe for language models) are
rivals: rows of the same table of methods, given the same inputs, and, unless a row says `allocation uniform`, the same
search for widths. To texts that are given they add none of their own, as published."""


def render(rows: Sequence[Row], examples: Mapping[str, Sequence[str]], figures: Mapping[str, Path]) -> str:
    """Return the page.

    Parameters
    ----------
    rows : sequence of Row
        All rows, those of a model together.
    examples : mapping of str to sequence of str
        What the original models write, by name.
    figures : mapping of str to Path
        Figures by the model's name, relative to the page.
    """
    lines = [_INTRODUCTION, ""]
    if not all(row.seconds for row in rows):
        lines += [
            "Rows without seconds are of an earlier run, whose encoders were compared on 418 lines of the whole text.",
            "",
        ]
    for (kind, model), found in groupby(rows, key=lambda row: (row.kind, row.model)):
        own = list(found)
        lines += [f"## {model}", ""]
        if model in figures:
            lines += [f"![{model}]({figures[model].as_posix()})", ""]
        lines += _table(kind, own)
        if model in examples:
            lines += _examples(own, examples[model])
    return "\n".join(lines).rstrip() + "\n"


def _table(kind: str, rows: Sequence[Row]) -> list[str]:
    texts = list(dict.fromkeys(name for row in rows for name in row.scores))
    columns = ["perplexity, {}", "of the original's"] if kind == "decoder" else ["neighbour kept, {}", "correlation"]
    head = ["removed", "the fold ran on", "method", *(c.format(text) for text in texts for c in columns)]
    head += ["tokens/s in genai", "s"] if any(row.speed for row in rows) else ["s"]
    lines = [table_row(head), table_row(["---"] * len(head))]
    for row in sorted(rows, key=lambda row: (row.asked, row.on_text, _order(row))):
        cells = [f"{row.removed:.1%}", row.inputs, row.title]
        cells += [cell for text in texts for cell in _cells(kind, row.scores.get(text))]
        if "tokens/s in genai" in head:
            speed = row.speed
            cells.append(f"{speed['before']:.0f} -> {speed['after']:.0f} ({speed['ratio']:.2f} x)" if speed else "")
        lines.append(table_row([*cells, f"{row.seconds:.0f}" if row.seconds else ""]))
    return [*lines, ""]


def _order(row: Row) -> float:
    """Return how far a row is from the original, on the first of its texts."""
    first = next(iter(row.scores.values()), {})
    return first["ratio"] if "ratio" in first else -first.get("kept", 0.0)


def _cells(kind: str, scores: Mapping[str, float] | None) -> list[str]:
    if scores is None:
        return ["", ""]
    if kind == "decoder":
        count = f"{_short(scores['ratio'])} ({scores['windows']:.0f} windows)"
        return [f"{_short(scores['before'])} -> {_short(scores['after'])}", count]
    return [f"{scores['kept']:.3f}", f"{scores['rank']:.4f}"]


def _short(value: float) -> str:
    return f"{value:.4g}" if value < 10_000 else f"{value:.1e}"


def _examples(rows: Sequence[Row], original: Sequence[str]) -> list[str]:
    lines = ["### What it writes", "", "The likeliest words, one after the other.", ""]
    for i, prompt in enumerate(PROMPTS):
        lines += [f"*{prompt}* ...", "", f"- original: {_quoted(original[i])}"]
        lines += [
            f"- {r.removed:.0%} removed, {r.title}, {r.inputs}: {_quoted(r.examples[i])}" for r in rows if r.examples
        ]
        lines.append("")
    return lines


def _quoted(text: str) -> str:
    return "`" + text.replace("`", "'") + "`"
