"""Files as content: named by their hash, cut into pieces that travel, and put together again.

A worker may be another machine. What a job reads is therefore sent, once to each worker, and lies there in a folder
named after the hash of all of it; paths inside are those beside each other here, because a model names its weight files
and a tokenizer lies beside its model.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO

from onnxfold.errors import ConfigError, ModelLoadError
from onnxfold.files import reason
from onnxfold.files.atomic import part_folder
from onnxfold.graph.files.model_files import external_files

#: Bytes of a piece.
PIECE = 64 << 20
#: The tokenizer of a language model, and the folder that graphs may lie in below it.
_TOKENIZER, _GRAPHS = "tokenizer.json", "onnx"


@dataclass(frozen=True)
class ContentFile:
    """A file: its place below the root, its size in bytes, and the SHA-256 of its bytes."""

    place: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Content:
    """The files that an argument of a job leads to."""

    root: str  # the folder here that places are in; it is no part of the content
    main: str  # place of the file or folder that was given
    digest: str  # SHA-256 of all places and files
    sha256: str  # SHA-256 of the given file; of a folder, the digest
    #: Everything that is read of it; empty where only the name of the content is needed.
    files: tuple[ContentFile, ...] = ()

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the list of files and of the files, in this order, cut into pieces."""
        return _cut(self._stream())

    def _stream(self) -> Iterator[bytes]:
        yield json.dumps([astuple(file) for file in self.files]).encode() + b"\n"
        for described in self.files:
            hashed, path = hashlib.sha256(), Path(self.root, described.place)
            try:
                with path.open("rb") as file:
                    while part := file.read(PIECE):
                        hashed.update(part)
                        yield part
            except OSError as error:
                raise ModelLoadError(f"'{path}' cannot be read: {reason(error)}") from None
            if hashed.hexdigest() != described.sha256:
                raise ModelLoadError(f"'{path}' changed while it was read: start again")

    def put_into(self, store: Path, pieces: Sequence[bytes]) -> Path:
        """Write the files into a store, unless they lie there; return the path of the file or folder that was given."""
        place = store / self.digest
        if not place.is_dir():
            store.mkdir(parents=True, exist_ok=True)
            with part_folder(place) as drafts:
                with (drafts / "stream").open("w+b") as stream:
                    stream.writelines(pieces)
                    stream.seek(0)
                    _write(drafts / "content", stream)
                with suppress(OSError):  # another thread was faster
                    (drafts / "content").rename(place)
        return place / self.main


def content_of(path: Path) -> Content:
    """Return the content of a file, with the files that hold its weights and its tokenizer, or of a folder."""
    start = path.absolute()
    root = start.parent.parent if start.parent.name == _GRAPHS and not start.is_dir() else start.parent
    if start.is_dir():
        read = sorted(path for path in start.rglob("*") if path.is_file())
    else:
        read = [start, *_files_beside(start, root)]
    files = []
    for file in read:
        if not file.is_relative_to(root):
            raise ConfigError(f"'{file}', which '{path}' reads, lies in another folder: put it beside '{path}'")
        files.append(ContentFile(file.relative_to(root).as_posix(), *_describe_file(file)))
    main = start.relative_to(root).as_posix()
    lines = [main, *(f"{file.sha256} {file.place}" for file in files)]
    digest = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
    sha256 = next((file.sha256 for file in files if file.place == main), digest)
    return Content(str(root), main, digest, sha256, tuple(files))


def _files_beside(file: Path, root: Path) -> list[Path]:
    """Return the files that a model file reads beside itself; nothing for other files."""
    if file.suffix.lower() != ".onnx":
        return []
    tokenizers = {folder / _TOKENIZER for folder in (file.parent, root)}
    real = file.resolve().parent
    weights = (
        Path(os.path.normpath(file.parent / path.relative_to(real))) if path.is_relative_to(real) else path
        for path in external_files(file)
    )  # fmt: skip
    return [*dict.fromkeys(weights), *sorted(path for path in tokenizers if path.is_file())]


def _describe_file(path: Path) -> tuple[int, str]:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return file.tell(), digest
    except OSError as error:
        raise ModelLoadError(f"'{path}' cannot be read: {reason(error)}") from None


def _cut(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of equal length, the last one apart."""
    held = bytearray()
    for part in parts:
        held += part
        while len(held) >= PIECE:
            yield bytes(held[:PIECE])
            del held[:PIECE]
    if held:
        yield bytes(held)


def _write(root: Path, stream: IO[bytes]) -> None:
    for place, size, sha256 in json.loads(stream.readline()):
        path, hashed = root / place, hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            while size and (part := stream.read(min(size, PIECE))):
                file.write(part)
                hashed.update(part)
                size -= len(part)
        if hashed.hexdigest() != sha256:
            raise ModelLoadError(f"'{place}' did not arrive as it was sent: start again")
    root.mkdir(exist_ok=True)  # of a folder without files
