"""Entry point of ``python -m onnxfold``."""

from onnxfold.cli import main

main()
