"""``python -m onnxfold``."""

from onnxfold.cli import main

main()
