"""The note on an inversion that the clock ended."""

from onnxfold.inputs.input_plan import InputRequest
from onnxfold.inputs.inversion.deep_inversion import Inversion


def cut_note(done: Inversion, requested: InputRequest) -> str:
    """Return how an inversion was cut, and how it is made again."""
    steps = ",".join(map(str, done.steps_per_batch))
    return (
        f"--input-seconds {requested.ceiling:g} ended the inversion after {done.steps} of "
        f"{done.planned * done.batches} steps: these inputs depend on the speed of this machine; "
        f"--input-steps {steps} makes them again"
    )
