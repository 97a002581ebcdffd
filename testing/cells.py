"""Cells of tables of tests: a few in every run, all of them in the long one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

import pytest


def in_turn(rows: Iterable[Any], columns: Sequence[Any]) -> list[Any]:
    """Return all pairs; every row has one column, in turn, in every run; the others are long."""
    return [
        pytest.param(row, column, marks=[] if column == chosen else [pytest.mark.long])
        for row, chosen in zip(rows, cycle(columns), strict=False)
        for column in columns
    ]
