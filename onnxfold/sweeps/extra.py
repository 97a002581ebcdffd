"""The packages that a sweep needs beside those of a fold: dask.distributed and pyarrow, the extra ``sweep``."""

from importlib.util import find_spec

from onnxfold.errors import ConfigError


def require_packages(*names: str) -> None:
    """Refuse work for which packages of the extra are missing; nothing is imported."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a sweep needs {' and '.join(missing)}, not installed: pip install 'dask[distributed]' pyarrow"
        )
