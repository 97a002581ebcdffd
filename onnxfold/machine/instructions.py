"""Instructions of the processor that decide what is computed, and how fast."""

import os
import re
from functools import cache
from pathlib import Path

#: What describes the processor on Linux.
DESCRIBED = Path("/proc/cpuinfo")
#: Flags of processors that multiply bfloat16 matrices faster than float32 ones; others emulate it, slower.
_BFLOAT16 = frozenset({"amx_bf16", "avx512_bf16"})
#: Variables by which users hold libraries to older instructions.
_HELD_BY = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")


def multiplies_bfloat16(described: Path = DESCRIBED) -> bool:
    """Whether products of bfloat16 matrices are faster than those of float32, and the user allows them."""
    return not any(os.environ.get(name) for name in _HELD_BY) and not _BFLOAT16.isdisjoint(flags(described))


def is_intel(described: Path = DESCRIBED) -> bool:
    """Whether Intel made the processor, as far as the system tells it."""
    return _line("vendor_id", described) == "GenuineIntel"


@cache
def flags(described: Path = DESCRIBED) -> frozenset[str]:
    """Return the names of the first processor's extensions; none where the system does not tell them."""
    return frozenset(_line("flags|Features", described).split())


def _line(names: str, described: Path) -> str:
    """Return the first processor's value of one of some names; empty where the system does not tell it."""
    try:
        text = described.read_text(errors="replace")
    except OSError:
        return ""
    line = re.search(rf"^(?:{names})\s*:\s*(.+)$", text, re.MULTILINE)
    return line[1].strip() if line else ""
