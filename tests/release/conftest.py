"""What a user has: the wheel, and an environment that it is installed in by the README's own first command."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from testing.transcripts import Command, commands_of

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class User:
    """A folder with an environment of its own.

    Parameters
    ----------
    folder : Path
        Where commands run.
    environment : Path
        The virtual environment.
    """

    folder: Path
    environment: Path

    def run(self, line: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a line in a shell that knows of nothing but the environment."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        path = os.pathsep.join([str(self.environment / "bin"), os.environ["PATH"]])
        cache = str(self.folder / "cache")
        return subprocess.run(
            ["bash", "-c", line], cwd=cwd or self.folder, capture_output=True, text=True, check=False,
            env={**inherited, "PATH": path, "XDG_CACHE_HOME": cache, "OMP_NUM_THREADS": "1", **variables},
        )  # fmt: skip

    def beside(self, environment: Path) -> User:
        """Return a user with a new environment that sees the packages of this one."""
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        (seen,), (own,) = (folder.glob("lib/python*/site-packages") for folder in (self.environment, environment))
        (own / "seen.pth").write_text(f"{seen}\n")
        return User(self.folder, environment)


def readme() -> list[Command]:
    """Return the commands of the README."""
    return commands_of(ROOT / "README.md")


@pytest.fixture(scope="session")
def user(shared_folder: Path) -> User:
    """A user who has the wheel and has run the first command; made once for all workers."""
    folder = shared_folder / "user"
    made = User(folder, folder / "environment")
    with (shared_folder / "user.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            folder.mkdir()
            build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
            subprocess.run(build, check=True, capture_output=True)
            subprocess.run([sys.executable, "-m", "venv", made.environment], check=True)
            first = made.run(readme()[0].line)
            assert first.returncode == 0, first.stderr[-2000:]
            assert first.stdout == readme()[0].printed
            (folder / "done").touch()
    return made
