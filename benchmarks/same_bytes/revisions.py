"""Revisions: the one to compare with, its checkout, and the changes of results that commits declare."""

import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Trailers of commit messages, each followed by the reason. The first: the rounding of results changes, and no width.
BITS = "Changes-bits"
RESULTS = "Changes-results"

#: What a branch is compared with, if it has left it.
_TRUNKS = ("origin/main", "main")


class NoRevisionError(Exception):
    """There is no git repository, or not this revision."""


def git(root: Path, *arguments: str) -> str:
    """Return what git prints.

    Raises
    ------
    NoRevisionError
        If it cannot be run, or fails; in one line.
    """
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoRevisionError(f"git cannot be run: {error}") from None
    if done.returncode:
        raise NoRevisionError(f"git {' '.join(arguments)}: {' '.join(done.stderr.split())}")
    return done.stdout.strip()


def parent_of_work(root: Path) -> str:
    """Return where this branch left the trunk; HEAD's parent, if it did not."""
    head = commit(root, "HEAD")
    for trunk in _TRUNKS:
        try:
            base = git(root, "merge-base", "HEAD", trunk)
        except NoRevisionError:
            continue
        if base != head:
            return base
    return commit(root, "HEAD^")


def commit(root: Path, revision: str) -> str:
    """Return the commit of a revision."""
    return git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")


def reasons(root: Path, parent: str, trailer: str) -> list[str]:
    """Return the reasons that commits after `parent` give for changing results."""
    form = f"--format=%(trailers:key={trailer},valueonly,unfold)"
    return [line for line in git(root, "log", form, f"{parent}..HEAD").splitlines() if line.strip()]


@contextmanager
def checked_out(root: Path, revision: str) -> Iterator[Path]:
    """Write the tree of a revision into a temporary folder, which goes afterwards; the repository learns nothing."""
    with tempfile.TemporaryDirectory(prefix="same-bytes-") as folder:
        tree, archive = Path(folder) / "tree", Path(folder) / "tree.tar"
        git(root, "archive", "--format=tar", f"--output={archive}", revision)
        with tarfile.open(archive) as packed:
            # Python 3.11 knows filters from 3.11.4 on; Debian has 3.11.2.
            packed.extraction_filter = getattr(tarfile, "data_filter", None)
            packed.extractall(tree)
        yield tree
