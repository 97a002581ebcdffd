"""Latency estimates for absent boards: instructions per operator x cycles per instruction / clock.

    seconds = sum over operators of instructions(operator) * cycles_per_instruction(operator) / clock

Instructions are those of generated C for a Cortex-M4F, counted in emulation. Cycles per instruction are ranges of the
device's profile, which names their sources; so is the result. Nothing here comes from an emulator's notion of time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfold.budget.devices import DeviceProfile
from onnxfold.edge_bench.runners.qemu_runner import CORE

#: Operators that are named in the basis of an estimate.
_SHOWN = 4


@dataclass(frozen=True)
class LatencyEstimate:
    """A range of seconds per inference, and in words what it rests on."""

    low_s: float
    high_s: float
    basis: str


def estimate_latency(instructions: Mapping[str, int], profile: DeviceProfile) -> LatencyEstimate:
    """Return the range of a latency."""
    ranges = profile.cycles_per_instruction
    if not ranges:
        raise ValueError(f"the profile of '{profile.name}' has no cycles_per_instruction")
    cycles = [
        sum(count * ranges.get(operator, ranges["other"])[end] for operator, count in instructions.items())
        for end in (0, 1)
    ]
    return LatencyEstimate(cycles[0] / profile.clock_hz, cycles[1] / profile.clock_hz, _basis(instructions, profile))


def _basis(instructions: Mapping[str, int], profile: DeviceProfile) -> str:
    largest = sorted(instructions, key=lambda operator: -instructions[operator])
    shown = [o for o in largest if instructions[o]][:_SHOWN]
    parts = [_part(o, instructions[o], profile) for o in shown]
    rest = sum(instructions.values()) - sum(instructions[o] for o in shown)
    if rest:
        parts.append(_part("other", rest, profile))
    own = profile.emulated_core == CORE
    confidence = "medium confidence" if own else f"LOW CONFIDENCE: instructions of a Cortex-M4F, not of {profile.core}"
    text = ", ".join(parts)
    return f"{confidence}; instructions x cycles each: {text}; at {profile.clock_hz / 1e6:,.0f} MHz"


def _part(operator: str, count: int, profile: DeviceProfile) -> str:
    low, high = profile.cycles_per_instruction.get(operator, profile.cycles_per_instruction["other"])
    return f"{operator} {count / 1e6:.3g} M x {low:g}-{high:g}"
