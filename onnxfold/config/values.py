"""Values of options, and their defaults."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

#: Where no goal is given: the agreement that stays at least, and the sparsity at most.
FAITHFUL, MOST_REMOVED = 0.95, 0.5
#: What the error of widths is traded against, and the widths that they are multiples of, unless something is asked for.
DEFAULT_OBJECTIVE, DEFAULT_ROUND_TO = "balanced", "auto"
#: The value of `cache` that is the user's own cache folder.
DEFAULT_CACHE = "default"

#: The method that changes nothing where exact duplicates are merged.
EXACT = "fold-naive"
ALLOCATIONS = ("global", "uniform")
#: Types of what is written: the model's own, or int8 weights with uint8 activations.
KEEP, INT8 = DTYPES = ("keep", "int8")
#: What a refinement may train, and where torch may compute it.
NO_REFINEMENT, *_ = REFINEMENTS = ("none", "all", "norms")
TORCH_DEVICES = ("auto", "cpu", "cuda")
INPUTS = ("auto", "deep-inversion", "dead-leaves", "noise")

#: The default of mappings.
NOTHING: Mapping[str, Any] = MappingProxyType({})
