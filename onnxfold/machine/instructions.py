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
    flags = processor_lines("flags|Features", described)[:1]
    return not any(map(os.environ.get, _HELD_BY)) and not _BFLOAT16.isdisjoint(" ".join(flags).split())


@cache
def processor_lines(names: str, described: Path = DESCRIBED) -> list[str]:
    """Return the values of some names, of all processors in turn; none where the system does not tell them."""
    try:
        text = described.read_text(errors="replace")
    except OSError:
        return []
    return re.findall(rf"^(?:{names})\s*:\s*(.+)$", text, re.MULTILINE)
