"""Python in other processes, which import nothing that lies in the working folder."""

import os
import sys


def python(*arguments: str) -> list[str]:
    """Return a command that runs Python without the working folder, or a script's folder, on its path."""
    return [sys.executable, "-P", *arguments]


def keep_folders_out() -> None:
    """Keep the working folder off the path of all processes that begin from now on, whoever starts them.

    `python -m` put it on this one's: it goes away, or, as a checkout that this package lies in, behind the installed.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        here = {"", os.getcwd()}
    except OSError:  # the folder is gone
        here = {""}
    if not sys.flags.safe_path and sys.path and sys.path[0] in here:
        first = sys.path.pop(0)
        if first == home:
            sys.path.append(first)
