"""Entry point of ``python -m onnxfold``."""

from onnxfold.machine.python import keep_folders_out

keep_folders_out()  # before anything is imported that is not of Python itself

from onnxfold.cli import main  # noqa: E402

main()
