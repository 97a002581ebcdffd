"""Control groups: the share of a machine that a container or a process may use."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Where the control groups, of version 1 or 2, are mounted.
MOUNTED = Path("/sys/fs/cgroup")
#: The file that names the groups of this process.
OWN = Path("/proc/self/cgroup")


def read_settings(
    controller: str, unified: str, legacy: str, mounted: Path = MOUNTED, own: Path = OWN
) -> Iterator[str]:
    """Yield what a file of this process' control group, and of those around it, says."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _settings_upwards(mounted, path, unified)
        elif controller in controllers.split(","):
            yield from _settings_upwards(mounted / controller, path, legacy)


def _settings_upwards(root: Path, path: str, name: str) -> Iterator[str]:
    # In a container the path may be one of the host's, which is not mounted; the root then is the container's group.
    parts = [p for p in path.split("/") if p and p != ".."]
    for depth in range(len(parts), -1, -1):
        with suppress(OSError):
            yield root.joinpath(*parts[:depth], name).read_text().strip()
