"""Torch operations, one file per operator family; importing this package registers them all."""

from importlib import import_module
from pkgutil import iter_modules

# Every module of this package registers its builders on import, so that a new operator is one file and nothing else.
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
