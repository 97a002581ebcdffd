"""Settings of deep inversion in tests."""

import math
from dataclasses import replace

from onnxfold.inputs.inversion.deep_inversion import InversionSettings, StepCounts


def of_steps(steps: float, settings: InversionSettings) -> InversionSettings:
    """Return settings with so many steps for every kind of network."""
    return replace(settings, steps=StepCounts(*[int(steps)] * 3))


#: Settings with which no loss counts as flat.
ENDLESS = InversionSettings(tolerance=-math.inf)
