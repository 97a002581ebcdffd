"""Mean and standard deviation of pixels: checks, and the scale of the pixels that they are meant for."""

from dataclasses import dataclass
from typing import Any

from onnxfold.config import checks
from onnxfold.errors import ConfigError

_BYTE = 255.0
_MOST_CHANNELS = 4


@dataclass(frozen=True)
class PixelScale:
    """What makes a network's input of pixels: (pixel - mean) / std, in pixels from 0 to `largest`.

    Parameters
    ----------
    mean, std : tuple of float
        One number, or one per channel.
    largest : float
        1 or 255.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    largest: float

    def __str__(self) -> str:
        shown = (", ".join(f"{v:g}" for v in values) for values in (self.mean, self.std))
        return "mean {}, std {} of pixels from 0 to {:g}".format(*shown, self.largest)


def pixel_scale(mean: Any, std: Any) -> PixelScale | None:
    """Return the scale of two options; None where neither is given.

    Numbers up to 1 are for pixels from 0 to 1, as torchvision's ToTensor gives them; larger ones for pixels from 0 to
    255. A mean of 0 and a deviation of 1 fit both, so the other option decides.

    Parameters
    ----------
    mean, std : float or sequence of float, optional
        In the same units.

    Raises
    ------
    OptionTypeError
        If a value is no number.
    ConfigError
        If only one is given, a number is out of range, the two are in different units, or fit both units.
    """
    means, deviations = _numbers("mean", mean, zero=True), _numbers("std", std, zero=False)
    if not means and not deviations:
        return None
    if not means or not deviations:
        raise ConfigError("mean and std belong together: give both, in the same units")
    told = {v > 1.0 for v in means if v != 0.0} | {v > 1.0 for v in deviations if v != 1.0}
    if not told:
        raise ConfigError(
            "mean 0 and std 1 do not say whether pixels go to 1 or to 255: give std 255 for inputs from 0 to 1, or "
            f"std {1 / _BYTE:.8f} (1/255) for inputs from 0 to 255"
        )
    if len(told) > 1:
        raise ConfigError(
            "mean and std are in different units: numbers up to 1 are for pixels of 0..1, larger ones for pixels of "
            "0..255; give all of them in one"
        )
    return PixelScale(means, deviations, _BYTE if told.pop() else 1.0)


def _numbers(name: str, value: Any, *, zero: bool) -> tuple[float, ...]:
    if value is None:
        return ()
    several = hasattr(value, "__iter__") and not isinstance(value, str | bytes)
    values = checks.entries(name, value) if several else (value,)
    if not 1 <= len(values) <= _MOST_CHANNELS:
        raise ConfigError(f"{name} has {len(values)} numbers: give one, or one per channel")
    return tuple(checks.up_to(name, v, most=_BYTE, zero=zero) for v in values)
