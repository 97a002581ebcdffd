"""Mean and standard deviation of pixels: checks, and the scale of the pixels that they are meant for."""

from dataclasses import dataclass
from typing import Any

from onnxfold.config import checks
from onnxfold.errors import ConfigError

#: Orders of channels: of files of images, and of OpenCV.
CHANNELS = RGB, BGR = "rgb", "bgr"
_BYTE = 255.0
_MOST_CHANNELS = 4


@dataclass(frozen=True)
class PixelScale:
    """The scale that makes a network's input of RGB pixels: (pixel - mean) / std, in pixels from 0 to `largest`."""

    mean: tuple[float, ...]  # one number, or one per channel in the network's order; none where pixels stay as they are
    std: tuple[float, ...]
    largest: float
    channels: str = RGB  # the order of channels that the network takes

    @property
    def is_bgr(self) -> bool:
        """Whether channels are turned around."""
        return self.channels == BGR

    def __str__(self) -> str:
        pixels = "BGR pixels" if self.is_bgr else "pixels"
        if not self.mean:
            return f"{pixels} as they are"
        shown = (", ".join(f"{v:g}" for v in values) for values in (self.mean, self.std))
        return "mean {}, std {} of {} from 0 to {:g}".format(*shown, pixels, self.largest)


def pixel_scale(mean: Any, std: Any, channels: Any = RGB) -> PixelScale | None:
    """Return the scale of three options; None where none is given.

    Numbers up to 1 are for pixels from 0 to 1, as torchvision's ToTensor gives them; larger ones for pixels from 0 to
    255. A mean of 0 and a deviation of 1 fit both, so the other option decides.
    """
    means, deviations = _numbers("mean", mean, zero=True), _numbers("std", std, zero=False)
    checks.choice("channels", channels, CHANNELS)
    if not means and not deviations:
        return PixelScale((), (), _BYTE, BGR) if channels == BGR else None
    if not means or not deviations:
        raise ConfigError("mean and std belong together: give both, in the same units")
    bytewise = {v > 1.0 for v in means if v != 0.0} | {v > 1.0 for v in deviations if v != 1.0}
    if not bytewise:
        raise ConfigError(
            "mean 0 and std 1 do not say whether pixels go to 1 or to 255: give std 255 for inputs from 0 to 1, or "
            f"std {1 / _BYTE:.8f} (1/255) for inputs from 0 to 255"
        )
    if len(bytewise) > 1:
        raise ConfigError(
            "mean and std are in different units: numbers up to 1 are for pixels of 0..1, larger ones for pixels of "
            "0..255; give all of them in one"
        )
    return PixelScale(means, deviations, _BYTE if bytewise.pop() else 1.0, channels)


def _numbers(name: str, value: Any, *, zero: bool) -> tuple[float, ...]:
    if value is None:
        return ()
    several = hasattr(value, "__iter__") and not isinstance(value, str | bytes)
    values = checks.entries(name, value) if several else (value,)
    if not 1 <= len(values) <= _MOST_CHANNELS:
        raise ConfigError(f"{name} has {len(values)} numbers: give one, or one per channel")
    return tuple(checks.bounded_number(name, v, most=_BYTE, zero=zero) for v in values)
