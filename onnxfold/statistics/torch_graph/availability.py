"""Whether torch is there."""

from importlib.util import find_spec

from onnxfold.errors import ConfigError


def torch_is_available() -> bool:
    """Whether torch is installed; it is not imported to find out."""
    return find_spec("torch") is not None


def require_torch(purpose: str) -> None:
    """Refuse work that needs torch where it is not installed.

    Raises
    ------
    ConfigError
        If torch is missing.
    """
    if not torch_is_available():
        raise ConfigError(f"{purpose} needs torch, which is not installed: pip install onnxfold[torch]")
