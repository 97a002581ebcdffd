"""A row of the table, and the file that keeps all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Row:
    """What one fold left of one model.

    Parameters
    ----------
    model, kind : str
        The model's name, and 'decoder' or 'encoder'.
    method : str
        A row of the package's table of methods.
    options : mapping of str to object
        What was given besides.
    asked : float
        Requested sparsity.
    on_text : bool
        Whether the fold was shown the front of the text.
    removed : float
        Part of all weights that went.
    inputs : str
        What the fold ran the network on.
    scores : mapping of str to mapping of str to float
        What was measured, by text.
    seconds : float
        Processor time of the fold; 0 where it was not taken.
    speed : mapping of str to float
        Tokens per second before and after, their ratio; empty where it was not measured.
    examples : list of str
        What follows the prompts.
    """

    model: str
    kind: str
    method: str
    options: Mapping[str, Any]
    asked: float
    on_text: bool
    removed: float
    inputs: str
    scores: Mapping[str, Mapping[str, float]]
    seconds: float
    speed: Mapping[str, float] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[Any, ...]:
        """What the row is of; there is one row of each."""
        return (
            self.kind,
            self.model,
            self.asked,
            self.on_text,
            self.method,
            tuple(sorted(map(str, self.options.items()))),
        )

    @property
    def title(self) -> str:
        """The method with its options."""
        return ", ".join([self.method, *(f"{name} {value}" for name, value in self.options.items())])


class Rows:
    """The rows of a file; a row that is measured again takes the place of the old one.

    The file is read again before it is written, so that rows can be measured beside each other.

    Parameters
    ----------
    path : Path
        A JSON file, perhaps of an earlier run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def _read(self) -> dict[str, Any]:
        if not self._path.exists():
            return {"examples": {}, "rows": []}
        content: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        return content

    @property
    def rows(self) -> list[Row]:
        """All rows: by model, sparsity and inputs."""
        return sorted((Row(**values) for values in self._read()["rows"]), key=lambda row: row.key)

    @property
    def examples(self) -> dict[str, list[str]]:
        """What the original models write, by name."""
        found: dict[str, list[str]] = self._read()["examples"]
        return found

    def add(self, *rows: Row, examples: Mapping[str, list[str]] = MappingProxyType({})) -> None:
        """Keep rows, and what original models write, in the file."""
        kept = {row.key: row for row in (*self.rows, *rows)}
        content = {"examples": {**self.examples, **examples}, "rows": [asdict(kept[key]) for key in sorted(kept)]}
        self._path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
