"""Print the allocations of TensorFlow Lite Micro for one model; run in a separate process.

Usage: python arena_script.py MODEL.tflite ARENA_BYTES INPUTS

Needs the package tflite-micro and knows nothing of onnxfold. The allocator writes to the standard error stream of C++,
and an arena that is too small may end the process: both are why it is not run inside another program.
"""

import sys
from importlib import import_module


def main(path: str, arena: int, inputs: int) -> None:
    """Allocate, run once on zeros, print."""
    import numpy

    runtime = import_module("tflite_micro.python.tflite_micro.runtime")
    interpreter = runtime.Interpreter.from_file(path, arena_size=arena)
    for index in range(inputs):
        detail = interpreter.get_input_details(index)
        interpreter.set_input(numpy.zeros(detail["shape"], detail["dtype"]), index)
    interpreter.invoke()
    interpreter.print_allocations()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
