"""The folder of a sweep: a small Parquet file per finished job, one file of all at the end, and the folded models.

A part is renamed into ``results/`` when it is complete, under the key of its job, so a job is in it wholly or not at
all. When a sweep ends, all rows are written to ``results.parquet``, and then the parts are removed; whatever ends the
process in between leaves a row in both places, and it is read once.
"""

import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfold.errors import ConfigError, ModelLoadError
from onnxfold.files import check_own, explain_errors, made_folder, new_folder, open_regular, reason, write
from onnxfold.files.parts import lock as hold
from onnxfold.sweeps.row import COLUMN_TYPES, Row

if TYPE_CHECKING:
    import pyarrow


_MODELS, _LOCK = "models", ".lock"
#: More than any sweep has.
_MOST_ROWS = 10_000_000


class SweepFolder:
    """Results of a sweep on the disk."""

    def __init__(self, path: Path) -> None:
        require_packages("pyarrow")
        if path.exists() and not path.is_dir():
            raise ConfigError(f"'{path}' is a file: give the folder of a sweep")
        self.path = path
        self.page = path / "index.html"
        self.whole = path / "results.parquet"  # all rows
        self.parts = path / "results"
        self.models = path / _MODELS

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder, and let no other sweep write into it; after an error, it goes again if nothing is in it."""
        lock = self.path / _LOCK
        if not lock.exists() and not self.whole.exists():  # then no sweep wrote here
            check_own((self.parts, self.models), lambda _: False, "a sweep")
        with made_folder(self.path), self._lock_folder(lock), made_folder(self.parts), made_folder(self.models):
            yield

    @contextmanager
    def _lock_folder(self, lock: Path) -> Iterator[None]:
        with explain_errors(self.path):
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            if hold(descriptor) is False:
                raise ConfigError(f"another sweep writes to '{self.path}': wait for it, or give another --out")
            yield
        finally:
            if os.listdir(self.path) == [_LOCK]:
                lock.unlink()
            os.close(descriptor)

    def rows(self) -> dict[str, Row]:
        """Return all rows by key; of rows in a part and in the whole file, that of the part."""
        by_key = {row.key: row for row in _read(self.whole)}
        for path in self._parts():
            by_key |= {row.key: row for row in _read(path, key=path.stem)}
        return by_key

    def add(self, row: Row) -> None:
        """Write the part of a job."""
        write({self.parts / f"{row.key}.parquet": as_parquet([row])})

    def compact(self) -> list[Row]:
        """Write all rows to one file, then remove the parts; return the rows."""
        parts = self._parts()
        rows = list(self.rows().values())
        if parts:
            write({self.whole: as_parquet(rows)})
            for part in parts:
                part.unlink(missing_ok=True)
        return rows

    def add_model(self, name: str, files: Mapping[str, bytes], *, is_folder: bool) -> str:
        """Write a folded model; return its path in the folder of the sweep."""
        if not is_folder:
            write({self.models / place: content for place, content in files.items()})
        elif not (self.models / name).exists():
            with new_folder(self.models / name) as draft:
                for place, content in files.items():
                    (draft / place).parent.mkdir(parents=True, exist_ok=True)
                    (draft / place).write_bytes(content)
        return f"{_MODELS}/{name}"

    def _parts(self) -> list[Path]:
        return sorted(self.parts.glob("*.parquet"))


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return one row per setting: that of the version that finished last."""
    return list({row.setting: row for row in sorted(rows, key=lambda row: row.finished or "")}.values())


def _schema() -> "pyarrow.Schema":
    import pyarrow

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    return pyarrow.schema([(name, types[kind]) for name, kind in COLUMN_TYPES.items()])


def as_parquet(rows: Sequence[Row]) -> bytes:
    """Return a file of rows."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist([row.to_dict() for row in rows], schema=_schema())
    written = io.BytesIO()
    parquet.write_table(table, written, compression="zstd")
    return written.getvalue()


def _read(path: Path, key: str | None = None) -> list[Row]:
    """Return the rows of a file, of which each has a key of its own; of a part, the one row of a key."""
    from pyarrow import ArrowException

    try:
        with open_regular(path) as file:
            return _rows(file.read(), key)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ModelLoadError(f"'{path}' cannot be read: {reason(error)}; remove it, and start again") from None
    except (ArrowException, MemoryError, ValueError) as error:
        why = type(error).__name__ if isinstance(error, ArrowException | MemoryError) else str(error)
        raise ModelLoadError(f"'{path}' is no result of a sweep ({why}): remove it, and start again") from None


def _rows(content: bytes, key: str | None) -> list[Row]:
    """Return the rows by the known columns of a file; those of other types than a sweep writes are not read."""
    from pyarrow import parquet

    file, types = parquet.ParquetFile(io.BytesIO(content)), {field.name: field.type for field in _schema()}
    if file.metadata.num_rows > _MOST_ROWS:
        raise ValueError(f"it says that it has {file.metadata.num_rows:,} rows")
    schema = file.schema_arrow
    if len({*schema.names}) != len(schema.names):
        raise ValueError("it has two columns of one name")
    wrong = [field.name for field in schema if field.name in types and field.type != types[field.name]]
    if wrong:
        raise ValueError(f"'{wrong[0]}' has another type")
    known = file.read([name for name in schema.names if name in types])
    rows = [Row.from_dict(values) for values in known.to_pylist()]
    twice = [name for name, count in Counter(row.key for row in rows).items() if count > 1]
    if twice:
        raise ValueError(f"it has several rows of the job {twice[0]}")
    if key is not None and [row.key for row in rows] != [key]:
        raise ValueError("it has not the one row that its name says")
    return rows


def require_packages(*names: str) -> None:
    """Refuse work for which packages of the extra are missing; nothing is imported."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a sweep needs {' and '.join(missing)}, not installed: "
            "pip install 'dask[distributed]' pyarrow cryptography"
        )
