"""Control groups of a process, as files."""

from pathlib import Path


def control_groups(tmp_path: Path, lines: str, limits: dict[str, str]) -> tuple[Path, Path]:
    """Write the groups that a process is in, and settings by path; return where they are mounted, and the first."""
    own = tmp_path / "own"
    own.write_text(lines)
    for path, text in limits.items():
        target = tmp_path / "cgroup" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return tmp_path / "cgroup", own
