"""Device profiles: the memory that a board leaves to a model.

A profile is a TOML file with the fields of :class:`DeviceProfile` (`name` is the file's) and a table `sources` with one
line per figure that says where it comes from. Those of this package lie in the folder `devices`; any other file is
given by its path.

Memory that a model needs on a microcontroller, and whether a board has it: one sum for all who ask.

RAM is the arena of the runtime (activations and its own tables), the arrays that inputs and outputs are sent in, which
every firmware project holds beside the arena, and what a board's profile says of its system, runtime and stack. Flash
is the model and what the profile says of the runtime.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from onnxfold.config import checks
from onnxfold.errors import ConfigError
from onnxfold.files import open_regular

_FPUS = ("none", "single", "double")
MICROCONTROLLER = "microcontroller"
_KINDS = (MICROCONTROLLER, "linux")
_LARGEST_FILE = 1 << 20
_LARGEST_FIGURE = 1 << 60
_MAY_BE_ZERO = ("psram_bytes", "runtime_flash_bytes", "runtime_ram_bytes", "stack_bytes")
#: What is no figure, and needs no source.
_UNSOURCED = frozenset({"title", "aliases", "kind", "emulated_core", "latency_table", "sources"})


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: Any) -> bool:
    """Whether a value is a number of plausible size; NaN is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST_FIGURE


def _is_range(value: Any) -> bool:
    pair = value if isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)) else [0, 0]
    return bool(0 < pair[0] <= pair[1])


def _are_cycles(value: Any) -> bool:
    return isinstance(value, dict) and (not value or "other" in value) and all(map(_is_range, value.values()))


_WHOLE = "a whole number, at least 1 (0 for memory that the board lacks)"
#: By the name of a field, or its type: what is expected, in words, and whether a value is that.
_EXPECTED: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    "sources": ("a table of strings", lambda value: isinstance(value, dict) and all(map(_is_text, value.values()))),
    "aliases": ("a list of strings", lambda v: isinstance(v, list) and all(isinstance(entry, str) for entry in v)),
    "fpu": (f"one of {', '.join(_FPUS)}", _FPUS.__contains__),
    "kind": (f"one of {', '.join(_KINDS)}", _KINDS.__contains__),
    "emulated_core": ("a string", lambda value: isinstance(value, str)),
    "latency_table": (
        "the path of a report of a fold with max_latency, from the profile's folder",
        lambda value: isinstance(value, str),
    ),
    "cycles_per_instruction": ("a table of [lowest, highest] by operator, with an entry 'other'", _are_cycles),
    **dict.fromkeys(_MAY_BE_ZERO, (_WHOLE, lambda v: _is_number(v) and isinstance(v, int) and v >= 0)),
    str: ("a string", _is_text),
    int: (_WHOLE, lambda value: _is_number(value) and isinstance(value, int) and value >= 1),
    float: ("a fraction between 0 and 1", lambda value: _is_number(value) and 0 <= value <= 1),
}


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The processor of a board."""

    core: str  # processor core
    #: Number of cores, and their highest clock in Hz.
    cores: int
    clock_hz: int
    fpu: str  # widest floating-point type computed in hardware
    #: Lowest and highest cycles per instruction of generated scalar C, by ONNX operator; 'other' stands for those that
    #: are not named. Empty where nothing is known: then there are no estimates of latency.
    cycles_per_instruction: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    #: Core whose instructions an emulator counts as this board would execute them, e.g. 'cortex-m4f'; empty if there is
    #: none, and estimates rest on another core's instructions.
    emulated_core: str = ""


@dataclass(frozen=True, kw_only=True)
class BoardMemory:
    """The memories of a board, and what they leave to a model."""

    #: Memories as in the data sheet; those of most boards have no PSRAM.
    flash_bytes: int
    ram_bytes: int
    psram_bytes: int = 0
    #: Part of each that an application may use, in [0, 1].
    usable_flash_fraction: float
    usable_ram_fraction: float
    usable_psram_fraction: float = 0.0
    #: What system and inference runtime take of that, without the runtime's arena and without the stack.
    runtime_flash_bytes: int
    runtime_ram_bytes: int
    #: Stack of what runs the model, where that lies in the RAM that is counted; by default that of our firmware.
    stack_bytes: int = 8192

    @property
    def model_flash_bytes(self) -> int:
        """Flash left for a model."""
        return int(self.flash_bytes * self.usable_flash_fraction) - self.runtime_flash_bytes

    @property
    def internal_ram_bytes(self) -> int:
        """Internal RAM left for a model's arena, inputs and outputs."""
        return int(self.ram_bytes * self.usable_ram_fraction) - self.runtime_ram_bytes - self.stack_bytes

    @property
    def model_psram_bytes(self) -> int:
        """PSRAM left for an arena."""
        return int(self.psram_bytes * self.usable_psram_fraction)

    @property
    def model_ram_bytes(self) -> int:
        """The larger of internal RAM and PSRAM left for activations: an arena is one block, in either of them."""
        return max(self.internal_ram_bytes, self.model_psram_bytes)


@dataclass(frozen=True, kw_only=True)
class DeviceProfile(BoardMemory, Processor):
    """A board: its processor, its memories, and what it is called."""

    #: Short name, and the name in tables.
    name: str
    title: str
    sources: Mapping[str, str]  # where each figure comes from, in words
    aliases: tuple[str, ...] = ()  # other names of the board
    kind: str = MICROCONTROLLER  # whether a model is linked into a firmware, or is a file that a process on Linux runs
    #: Path of the report of a fold with `max_latency` that was done on such a board, from the profile's folder; the
    #: table in it is of one network. Empty if there is none.
    latency_table: str = ""


def known_devices() -> tuple[str, ...]:
    """Return the names of the boards that come with the package, without aliases."""
    return tuple(sorted(Path(entry.name).stem for entry in _folder().iterdir() if entry.name.endswith(".toml")))


def load_device(name_or_path: str | Path) -> DeviceProfile:
    """Return the profile of a board, by a known name or alias, or by the path of a TOML file."""
    if str(name_or_path).endswith(".toml"):
        path = checks.path("device", name_or_path)
        profile = _profile(path.stem, _content(path), f"'{path}'")
        table = profile.latency_table and str(path.parent / profile.latency_table)
        return replace(profile, latency_table=table)
    profiles = [_profile(n, (_folder() / f"{n}.toml").read_bytes(), f"'{n}'") for n in known_devices()]
    by_name = {name: profile for profile in profiles for name in (profile.name, *profile.aliases)}
    wanted = str(name_or_path).lower()
    if wanted not in by_name:
        known = ", ".join(by_name)
        raise ConfigError(f"device '{name_or_path}' is not one of: {known}; or give the path of a .toml profile")
    return by_name[wanted]


def device_budgets(profile: DeviceProfile) -> dict[str, int]:
    """Return the limits in bytes that a board sets, by the names of :data:`onnxfold.budget.objectives.COSTS`."""
    return {"ram": profile.model_ram_bytes, "flash": profile.model_flash_bytes}


def _folder() -> Any:
    return files("onnxfold.budget").joinpath("devices")


def _content(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"device profile '{path}' cannot be read: {error.strerror}") from None
    if len(content) > _LARGEST_FILE:
        raise ConfigError(f"device profile '{path}' is larger than {_LARGEST_FILE:,} bytes: it is not a profile")
    return content


def _profile(name: str, content: bytes, label: str) -> DeviceProfile:
    try:
        table = tomllib.loads(content.decode())
    except RecursionError:
        raise ConfigError(f"device profile {label} is nested too deeply: it is not a profile") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"device profile {label} is not TOML: {error}") from None
    problem = _problem(table)
    if problem:
        raise ConfigError(f"device profile {label} {problem}; see the profiles that come with onnxfold")
    table["aliases"] = tuple(table.get("aliases", ()))
    table["cycles_per_instruction"] = {
        operator: (float(low), float(high)) for operator, (low, high) in table.get("cycles_per_instruction", {}).items()
    }
    profile = DeviceProfile(name=name, **table)
    for key, left in device_budgets(profile).items():
        if left < 1:
            shares = "runtime_ram_bytes and stack_bytes leave" if key == "ram" else "runtime_flash_bytes leaves"
            raise ConfigError(f"device profile {label}: {shares} no {key} for a model")
    return profile


def _problem(table: Mapping[str, Any]) -> str:
    """Return the fault of a profile in words, '' if it has none."""
    known = [f for f in fields(DeviceProfile) if f.name != "name"]
    types = {f.name: f.type for f in known}
    required = {f.name for f in known if f.default is MISSING and f.default_factory is MISSING}
    for problem, names in (("lacks", required - table.keys()), ("has unknown fields", table.keys() - types.keys())):
        if names:
            return f"{problem} {', '.join(sorted(names))}"
    for key, value in table.items():
        expected, holds = _EXPECTED[key if key in _EXPECTED else types[key]]
        if not holds(value):
            return f"has {key} = {value!r}, which is not {expected}"
    unsourced = sorted(table.keys() - _UNSOURCED - table["sources"].keys())
    return f"does not say in its sources where these come from: {', '.join(unsourced)}" if unsourced else ""


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
        psram = f" and {profile.model_psram_bytes / _K:,.0f} K PSRAM" if profile.model_psram_bytes else ""
        reasons.append(
            f"needs {whole / _K:,.0f} K RAM ({need.arena_bytes / _K:,.0f} arena of {need.runtime}, "
            f"{need.buffer_bytes / _K:,.0f} input and output), has {profile.internal_ram_bytes / _K:,.0f} K{psram} "
            f"beside system, runtime and stack: {-(-over // _K):,} K too much"
        )
    return f"does not fit: {'; '.join(reasons)}" if reasons else ""
