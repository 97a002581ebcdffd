"""Atomic writes: a file is complete or absent.

What is written is complete, in its folder and on the disk, before it takes its name; an error or a signal before that
leaves the folder as it was. A link is followed and the file it leads to is replaced; its mode stays. What is written to
the null device is dropped.
"""

import io
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from onnxfold.errors import ModelSaveError
from onnxfold.files.parts import PartFile, part_directory, part_file
from onnxfold.files.targets import check_new_folder, reason, target_of


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` when the block ends without an error."""
    target = target_of(path)
    if target.is_null:
        yield io.BytesIO()
        return
    with explain_errors(path), part_file(target.real.parent, private=target.status is not None) as part:
        yield part.file
        part.move_to(target.real, target.status)


@contextmanager
def write_together(contents: Mapping[Path, bytes]) -> Iterator[None]:
    """Write files that appear together, at the end of a block that ends without an error."""
    with ExitStack() as parts:
        for path, content in contents.items():
            file = parts.enter_context(replace_file(path))
            file.write(content)
            file.flush()
        yield


def write(contents: Mapping[Path, bytes]) -> None:
    """Write files that appear together, see :func:`write_together`."""
    with write_together(contents):
        pass


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder that becomes `path` when the block ends without an error."""
    check_new_folder(path)
    real = path.resolve()
    with explain_errors(path), part_directory(real.parent) as part:
        draft = part / "draft"  # the part itself is locked, and a model is saved under a lock of its folder
        draft.mkdir(0o700)
        yield draft
        if real.exists():  # and empty: not every system replaces a folder
            draft.chmod(real.stat().st_mode & 0o777)
            real.rmdir()
        else:
            draft.chmod(0o755)
        draft.replace(real)


@contextmanager
def made_folder(path: Path) -> Iterator[None]:
    """Make a folder where it is missing; after an error, what was made goes again if nothing is in it."""
    made = []
    try:
        try:
            made = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise ModelSaveError(f"cannot create the folder '{path}': {reason(error)}") from None
        yield
    except BaseException:
        with suppress(OSError):
            for folder in made:
                folder.rmdir()
        raise


@contextmanager
def part_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` for drafts of it; :func:`replace_by` moves one into place."""
    target = target_of(path)
    with explain_errors(path), TemporaryDirectory() if target.is_null else part_directory(target.real.parent) as folder:
        yield Path(folder)


def replace_by(path: Path, draft: Path) -> None:
    """Put a complete file of the same file system in the place of `path`."""
    target = target_of(path)
    if target.is_null:
        return
    with explain_errors(path), draft.open("r+b") as file:
        PartFile(draft, file).move_to(target.real, target.status)


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says into a ModelSaveError that names the file."""
    try:
        yield
    except OSError as error:
        raise ModelSaveError(f"cannot write '{path}': {reason(error)}") from error
