"""Files as content: named by their hash, cut into pieces that travel, and put together again.

A worker may be another machine. What a job reads is therefore sent, once to each worker, and lies there in a folder
named after the hash of all of it; paths inside are those beside each other here, because a model names its weight files
and a tokenizer lies beside its model.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onnxfold.errors import ConfigError, ModelLoadError
from onnxfold.files import part_folder, reason
from onnxfold.graph.model_files import external_files

#: Bytes of a piece.
PIECE = 64 << 20
#: The tokenizer of a language model, and the folder that graphs may lie in below it.
_TOKENIZER, _GRAPHS = "tokenizer.json", "onnx"


@dataclass(frozen=True)
class ContentFile:
    """One file: its place below the root, its size in bytes, and the SHA-256 of what it holds."""

    place: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Content:
    """What one argument of a job leads to.

    Parameters
    ----------
    root : str
        The folder here that places are in; it is no part of the content.
    main : str
        Place of the file or folder that was given.
    files : tuple of ContentFile
        Everything that is read of it.
    """

    root: str
    main: str
    files: tuple[ContentFile, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all places and files."""
        lines = [self.main, *(f"{file.sha256} {file.place}" for file in self.files)]
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the given file; of a folder, that of the content."""
        return next((file.sha256 for file in self.files if file.place == self.main), self.digest)

    def pieces(self) -> Iterator[bytes]:
        """Yield all files, one after the other, cut into pieces; every file begins a new piece.

        Raises
        ------
        ModelLoadError
            If a file cannot be read, or is not what it was.
        """
        for described in self.files:
            hashed, path = hashlib.sha256(), Path(self.root, described.place)
            try:
                with path.open("rb") as file:
                    for _ in _piece_sizes(described.size):
                        piece = file.read(PIECE)
                        hashed.update(piece)
                        yield piece
            except OSError as error:
                raise ModelLoadError(f"'{path}' cannot be read: {reason(error)}") from None
            if hashed.hexdigest() != described.sha256:
                raise ModelLoadError(f"'{path}' changed while it was read: start again")

    def put_into(self, store: Path, pieces: Sequence[bytes]) -> Path:
        """Write the files into a store, unless they lie there; return the path of the file or folder that was given.

        Parameters
        ----------
        store : Path
            A folder; contents lie in it by their digest.
        pieces : sequence of bytes
            Those of :meth:`pieces`.
        """
        place = store / self.digest
        if not place.is_dir():
            store.mkdir(parents=True, exist_ok=True)
            with part_folder(place) as drafts:
                self._write(drafts / "content", iter(pieces))
                with suppress(OSError):  # another thread was faster
                    (drafts / "content").rename(place)
        return place / self.main

    def _write(self, root: Path, pieces: Iterator[bytes]) -> None:
        for described in self.files:
            path = root / described.place
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                for _ in _piece_sizes(described.size):
                    file.write(next(pieces))


def content_of(path: Path) -> Content:
    """Return the content of a file, with the files that hold its weights and its tokenizer, or of a folder.

    Raises
    ------
    ConfigError
        If a file that holds weights lies outside of the folder of its model.
    ModelLoadError
        If something cannot be read.
    """
    given = path.absolute()
    root = given.parent.parent if given.parent.name == _GRAPHS and not given.is_dir() else given.parent
    found = _in_folder(given) if given.is_dir() else [given, *_beside(given, root)]
    files = []
    for file in found:
        if not file.is_relative_to(root):
            raise ConfigError(f"'{file}', which '{path}' reads, lies in another folder: put it beside '{path}'")
        files.append(ContentFile(file.relative_to(root).as_posix(), *_described(file)))
    return Content(str(root), given.relative_to(root).as_posix(), tuple(files))


def _in_folder(folder: Path) -> list[Path]:
    found = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    return sorted(path for path in found if path.is_file())


def _beside(file: Path, root: Path) -> list[Path]:
    """Return what a model file reads beside itself; nothing for other files."""
    if file.suffix.lower() != ".onnx":
        return []
    tokenizers = {folder / _TOKENIZER for folder in (file.parent, root)}
    weights = [Path(os.path.normpath(file.parent / path.relative_to(file.resolve().parent)))
               if path.is_relative_to(file.resolve().parent) else path
               for path in external_files(file)]  # fmt: skip
    return [*dict.fromkeys(weights), *sorted(path for path in tokenizers if path.is_file())]


def _described(path: Path) -> tuple[int, str]:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return file.tell(), digest
    except OSError as error:
        raise ModelLoadError(f"'{path}' cannot be read: {reason(error)}") from None


def _piece_sizes(size: int) -> range:
    return range(0, max(size, 1), PIECE)
