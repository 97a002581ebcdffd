"""Settings of deep inversion in tests."""

from dataclasses import replace

from onnxfold.inputs.inversion.settings import InversionSettings


def of_steps(steps: float, settings: InversionSettings) -> InversionSettings:
    """Return settings with so many steps for every kind of network."""
    return replace(settings, steps=int(steps), steps_fused=int(steps), steps_without_statistics=int(steps))
