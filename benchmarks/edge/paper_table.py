"""The published device table of model folding: its figures, their likely origin, and impossible entries.

Published, for a model called LeNet5 at 10, 25, 50 and 70 % sparsity: RAM of 59.5, 55.7, 48.0 and 36.5 K, and flash from
3.4 down to 1.2 MB, the same on a Jetson Nano, an ESP-EYE and an Arduino Nano 33 BLE Sense. There is no column for 0 %.
Its latencies are not monotone in the sparsity. Only RAM and flash are kept here; flash at 25 and 50 % is known to lie
between the others.

Inference, not fact: the figures are a desk estimate for a LeNet5-2x. With c channels in the first layer and images of
32 x 32, a 5 x 5 convolution without padding and 2 x 2 pooling hold 28^2 c + 14^2 c floats at once, and

    RAM(c) = 4 (28^2 + 14^2) c bytes + 2.08 K

equals the published figures for c = 15, 14, 12 and 9 of 16. With all widths of LeNet5-2x scaled by c / 16, 4 bytes per
weight give the published ends of flash.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfold.budget.devices import DeviceProfile
from onnxfold.edge_bench.result import BenchResult

K = 1024
#: The published flash agrees with weights in decimal megabytes.
MB = 1_000_000
DEVICES = ("jetson-nano", "esp-eye", "arduino-nano-33-ble")

_FLOAT_BYTES = 4
_SIDE, _KERNEL, _POOL, _CLASSES = 32, 5, 2, 10
_OVERHEAD_K = 2.08
#: Channels of both convolutions and features of both hidden layers of LeNet5-2x.
_WIDTHS = (16, 64, 512, 256)
#: Not even a process that does nothing is smaller on Linux, with its C library and stack.
_SMALLEST_PROCESS_BYTES = 1 << 20


@dataclass(frozen=True)
class PublishedColumn:
    """A column of the table; flash is None where its figure is not known here."""

    sparsity: float  # fraction of the weights removed
    ram_k: float
    flash_mb: float | None


PUBLISHED = (
    PublishedColumn(0.10, 59.5, 3.4),
    PublishedColumn(0.25, 55.7, None),
    PublishedColumn(0.50, 48.0, None),
    PublishedColumn(0.70, 36.5, 1.2),
)


def ram_bytes(channels: int) -> float:
    """Return the RAM that the inferred formula gives for a number of channels of the first layer."""
    convolved = _SIDE - _KERNEL + 1
    pooled = convolved // _POOL
    return _FLOAT_BYTES * (convolved**2 + pooled**2) * channels + _OVERHEAD_K * K


def flash_bytes(channels: int) -> int:
    """Return 4 bytes per weight and bias of LeNet5-2x with all widths scaled by ``channels / 16``, BatchNorms fused."""
    c1, c2, f1, f2 = (round(width * channels / _WIDTHS[0]) for width in _WIDTHS)
    side = ((_SIDE - _KERNEL + 1) // _POOL - _KERNEL + 1) // _POOL
    fan_ins = (_KERNEL**2, c1 * _KERNEL**2, c2 * side**2, f1, f2)
    return _FLOAT_BYTES * sum((n + 1) * m for n, m in zip(fan_ins, (c1, c2, f1, f2, _CLASSES), strict=True))


def inferred_channels(column: PublishedColumn) -> int:
    """Return the number of channels of the first layer for which the formula comes closest to the published RAM."""
    return min(range(1, _WIDTHS[0] + 1), key=lambda c: abs(ram_bytes(c) - column.ram_k * K))


def inference() -> list[str]:
    """Return in lines what the table may rest on; to be printed as inference."""
    lines = []
    for column in PUBLISHED:
        c = inferred_channels(column)
        flash = f"{column.flash_mb:g} MB" if column.flash_mb is not None else "between the ends"
        lines.append(
            f"{column.sparsity:.0%}: published RAM {column.ram_k:.1f} K, flash {flash}; LeNet5-2x with {c} of "
            f"{_WIDTHS[0]} channels in its first layer: RAM {ram_bytes(c) / K:.1f} K by the formula, "
            f"4 bytes x weights = {flash_bytes(c) / MB:.1f} MB"
        )
    return lines


def paper_rows() -> list[BenchResult]:
    """Return the published figures as rows; latencies are not among those kept here."""
    return [
        BenchResult(
            model=f"LeNet5 (paper), {column.sparsity:.0%}",
            device=device,
            method="paper-reported",
            ram_bytes=round(column.ram_k * K),
            flash_bytes=None if column.flash_mb is None else round(column.flash_mb * MB),
            memory="as published; how it was obtained is not stated",
            basis="as published",
            details={"sparsity": column.sparsity},
        )
        for column in PUBLISHED
        for device in DEVICES
    ]


def contradictions(row: BenchResult, profile: DeviceProfile) -> list[str]:
    """Return why a published row cannot have been measured on a device, one line per cell; empty if it can.

    Flash that is not known is taken as the smallest that is published.
    """
    reasons = []
    known = [c.flash_mb for c in PUBLISHED if c.flash_mb is not None]
    flash = row.flash_bytes if row.flash_bytes is not None else round(min(known) * MB)
    if flash > profile.flash_bytes:
        at_least = "" if row.flash_bytes is not None else "at least "
        reasons.append(
            f"flash: {at_least}{flash / MB:.1f} MB of {profile.flash_bytes / (K * K):.4g} MB that the chip has, "
            "before any runtime"
        )
    if row.ram_bytes is not None and profile.kind == "linux" and row.ram_bytes < _SMALLEST_PROCESS_BYTES:
        reasons.append(
            f"RAM: {row.ram_bytes / K:.1f} K is less than any process on Linux takes; at best the activations alone"
        )
    if row.ram_bytes is not None and row.ram_bytes > max(profile.ram_bytes, profile.psram_bytes):
        reasons.append(f"RAM: {row.ram_bytes / K:.1f} K of {profile.ram_bytes / K:,.0f} K that the board has")
    return reasons


def findings(rows: Sequence[BenchResult]) -> list[str]:
    """Return the objections to the published rows as a whole."""
    lines = []
    models = dict.fromkeys(row.model for row in rows)
    same = [m for m in models if len({(r.ram_bytes, r.flash_bytes) for r in rows if r.model == m}) == 1]
    if same and len({row.device for row in rows}) > 1:
        devices = ", ".join(dict.fromkeys(row.device for row in rows))
        lines.append(
            f"RAM and flash are the same on {devices} in {len(same)} of {len(models)} columns: different runtimes, "
            "kernels and pointer sizes would differ, so at most one of them can have been measured"
        )
    return lines
