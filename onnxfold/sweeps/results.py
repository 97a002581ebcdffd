"""The folder of a sweep: a small Parquet file per finished job, one file of all at the end, and the folded models.

A part is renamed into ``results/`` when it is complete, under the key of its job, so a job is in it wholly or not at
all. When a sweep ends, all rows are written to ``results.parquet``, and then the parts are removed; whatever ends the
process in between leaves a row in both places, and it is read once.
"""

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfold.errors import ConfigError, ModelLoadError
from onnxfold.files import explained, new_folder, reason, write
from onnxfold.files.locks import is_held_elsewhere
from onnxfold.sweeps.extra import require_packages
from onnxfold.sweeps.row import COLUMN_TYPES, Row

if TYPE_CHECKING:
    import pyarrow

_PARTS, _WHOLE, _MODELS, _LOCK = "results", "results.parquet", "models", ".lock"


class SweepFolder:
    """Results of a sweep on the disk.

    Parameters
    ----------
    path : Path
        The folder; it need not exist.

    Raises
    ------
    ConfigError
        If it is a file, or pyarrow is not installed.
    """

    def __init__(self, path: Path) -> None:
        require_packages("pyarrow")
        if path.exists() and not path.is_dir():
            raise ConfigError(f"'{path}' is a file: give the folder of a sweep")
        self.path = path

    @property
    def page(self) -> Path:
        """Where the page is written."""
        return self.path / "index.html"

    @property
    def whole(self) -> Path:
        """The file of all rows."""
        return self.path / _WHOLE

    @property
    def models(self) -> Path:
        """The folder of the folded models."""
        return self.path / _MODELS

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder, and let no other sweep write into it.

        Raises
        ------
        ConfigError
            If another sweep does.
        ModelSaveError
            If it cannot be made.
        """
        with explained(self.path):
            for folder in (self.path, self.path / _PARTS, self.models):
                folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if is_held_elsewhere(descriptor):
                raise ConfigError(f"another sweep writes to '{self.path}': wait for it, or give another --out")
            yield
        finally:
            os.close(descriptor)

    def rows(self) -> dict[str, Row]:
        """Return all rows by key; of rows in a part and in the whole file, that of the part.

        Raises
        ------
        ModelLoadError
            If a file cannot be read.
        """
        found: dict[str, Row] = {}
        for path in (self.whole, *self._parts()):
            for row in _read(path):
                found[row.key] = row
        return found

    def add(self, row: Row) -> None:
        """Write the part of a job.

        Raises
        ------
        ModelSaveError
            If it cannot be written.
        """
        write({self._part(row.key): _parquet([row])})

    def compact(self, keep: Iterable[Row] | None = None) -> list[Row]:
        """Write all rows to one file, then remove the parts; return the rows.

        Parameters
        ----------
        keep : iterable of Row, optional
            The rows; by default all that are there.
        """
        parts = self._parts()
        rows = list(self.rows().values() if keep is None else keep)
        if parts or keep is not None:
            write({self.whole: _parquet(rows)})
            for part in parts:
                part.unlink(missing_ok=True)
        return rows

    def add_model(self, name: str, files: Mapping[str, bytes], *, is_folder: bool) -> str:
        """Write a folded model; return its path in the folder of the sweep.

        Parameters
        ----------
        name : str
            Its file, or its folder.
        files : mapping of str to bytes
            What is in the folder, or the file and those beside it that hold its weights.
        is_folder : bool
            Whether the model is a folder.
        """
        if not is_folder:
            write({self.models / place: content for place, content in files.items()})
        elif not (self.models / name).exists():
            with new_folder(self.models / name) as draft:
                for place, content in files.items():
                    (draft / place).parent.mkdir(parents=True, exist_ok=True)
                    (draft / place).write_bytes(content)
        return f"{_MODELS}/{name}"

    def _part(self, key: str) -> Path:
        return self.path / _PARTS / f"{key}.parquet"

    def _parts(self) -> list[Path]:
        return sorted((self.path / _PARTS).glob("*.parquet"))


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return one row per setting: that of the version that finished last."""
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.finished or ""):
        found[row.setting] = row
    return list(found.values())


def _schema() -> "pyarrow.Schema":
    import pyarrow

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    return pyarrow.schema([(name, types[kind]) for name, kind in COLUMN_TYPES.items()])


def _parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist([row.to_dict() for row in rows], schema=_schema())
    written = io.BytesIO()
    parquet.write_table(table, written, compression="zstd")
    return written.getvalue()


def _read(path: Path) -> list[Row]:
    from pyarrow import ArrowException, parquet

    try:
        with suppress(FileNotFoundError):
            return [Row.from_dict(values) for values in parquet.read_table(io.BytesIO(path.read_bytes())).to_pylist()]
    except OSError as error:
        raise ModelLoadError(f"'{path}' cannot be read: {reason(error)}") from None
    except (ArrowException, TypeError, ValueError):
        raise ModelLoadError(f"'{path}' is no result of a sweep: remove it, and start again") from None
    return []
