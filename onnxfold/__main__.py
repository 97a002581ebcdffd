"""Entry point of ``python -m onnxfold``, and of the command ``onnxfold``."""

import os
import signal
from types import FrameType

#: What ends a run while it imports what it needs, which takes a second: nothing is there yet that must be cleaned up.
_ENDS = {signal.SIGTERM: (b"terminated\n", 143), signal.SIGINT: (b"interrupted\n", 130)}


def _end(number: int, frame: FrameType | None) -> None:
    said, code = _ENDS[signal.Signals(number)]
    os.write(2, said)
    os._exit(code)


def run() -> None:
    """Run the command line; signals end it as they do later on while it is being imported."""
    before = {number: signal.getsignal(number) for number in _ENDS}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # a shell ignores interrupts for what runs in the background
            signal.signal(number, _end)
    from onnxfold.machine.python import keep_folders_out

    keep_folders_out()  # before anything is imported that is not of Python itself
    from onnxfold.cli import main

    signal.signal(signal.SIGINT, before[signal.SIGINT])  # from here on, both clean up
    main()


if __name__ == "__main__":
    run()
