"""Memory that a model needs on a microcontroller, and whether a board has it: one sum for all who ask.

RAM is the arena of the runtime (activations and its own tables), the arrays that inputs and outputs are sent in, which
every firmware project holds beside the arena, and what a board's profile says of its system, runtime and stack. Flash
is the model and what the profile says of the runtime.
"""

from dataclasses import dataclass

from onnxfold.budget.devices import DeviceProfile

_K, _M = 1 << 10, 1 << 20


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """The memory that a model needs on any board."""

    runtime: str
    model_bytes: int  # the model in read-only memory, without a runtime
    activation_bytes: int | None  # activations, and scratch memory of kernels; None if not known
    table_bytes: int = 0  # what the runtime keeps in its arena besides
    buffer_bytes: int  # arrays of inputs and outputs, which are no part of the arena
    basis: str  # how these were obtained
    is_exact: bool = True  # whether they are those of a project; else they are lower bounds

    @property
    def arena_bytes(self) -> int | None:
        """Size of the arena."""
        return None if self.activation_bytes is None else self.activation_bytes + self.table_bytes

    @property
    def ram_bytes(self) -> int | None:
        """Arena and arrays."""
        return None if self.arena_bytes is None else self.arena_bytes + self.buffer_bytes

    def in_psram(self, profile: DeviceProfile) -> bool:
        """Whether a board's internal RAM is too small for the arena beside the arrays."""
        return self.ram_bytes is not None and self.ram_bytes > profile.internal_ram_bytes

    def room_for_activations(self, profile: DeviceProfile) -> int:
        """Return the bytes for activations that a board leaves beside arrays and tables; less than 0 is none."""
        internal = profile.internal_ram_bytes - self.buffer_bytes
        return max(internal, profile.model_psram_bytes if internal >= 0 else 0) - self.table_bytes


def misfit(need: MemoryNeed, profile: DeviceProfile) -> str:
    """Return in one line why a model does not fit a board, or is not known to; '' if it fits.

    K = 1024 bytes, M = 1024 K.
    """
    reasons = []
    if need.model_bytes > profile.model_flash_bytes:
        whole = need.model_bytes + profile.runtime_flash_bytes
        usable = int(profile.flash_bytes * profile.usable_flash_fraction)
        reasons.append(
            f"needs {whole / _M:.2f} MB flash ({need.model_bytes / _M:.2f} model, "
            f"{profile.runtime_flash_bytes / _M:.2f} runtime), has {profile.flash_bytes / _M:.4g} MB "
            f"({usable / _M:.2f} usable)"
        )
    if need.activation_bytes is None or need.arena_bytes is None:
        if not reasons:
            return "not known to fit: the size of an activation is not known; give --input-shapes for every free one"
    elif need.activation_bytes > need.room_for_activations(profile):
        whole = need.arena_bytes + need.buffer_bytes
        over = need.activation_bytes - need.room_for_activations(profile)
        reasons.append(
            f"needs {whole / _K:,.0f} K RAM ({need.arena_bytes / _K:,.0f} arena of {need.runtime}, "
            f"{need.buffer_bytes / _K:,.0f} input and output), has {_ram_of(profile)} beside system, runtime and "
            f"stack: {-(-over // _K):,} K too much"
        )
    return f"does not fit: {'; '.join(reasons)}" if reasons else ""


def _ram_of(profile: DeviceProfile) -> str:
    psram = f" and {profile.model_psram_bytes / _K:,.0f} K PSRAM" if profile.model_psram_bytes else ""
    return f"{profile.internal_ram_bytes / _K:,.0f} K{psram}"
