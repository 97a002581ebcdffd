"""Availability of torch, and its import."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec

from onnxfold.errors import ConfigError
from onnxfold.machine.instructions import processor_lines
from onnxfold.machine.threads import load_with


def torch_is_available() -> bool:
    """Whether torch is installed; the check does not import it."""
    return find_spec("torch") is not None


def reproducible_products() -> dict[str, str]:
    """Return the settings by which MKL adds up in one order, whatever the number of threads and an array's address.

    On processors of other makers than Intel, tests saw it do so by itself.
    """
    return {"MKL_CBWR": "AUTO,STRICT"} if processor_lines("vendor_id")[:1] == ["GenuineIntel"] else {}


@cache
def load_torch() -> None:
    """Import torch, before any module that computes with it is: threads do not spin, nor change what is computed."""
    with load_with({"OMP_WAIT_POLICY": "passive"} | reproducible_products()):
        torch = import_module("torch")
        torch.ones(2, 2).mm(torch.ones(2, 2))  # MKL reads its setting with its first product


def find_device(name: str) -> str:
    """Return where torch computes: 'cpu' or 'cuda'; 'auto' is CUDA where torch has a device."""
    load_torch()
    import torch

    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ConfigError("torch_device 'cuda': torch has no CUDA device here; take 'auto' or 'cpu'")
    return name if name != "auto" else "cuda" if has_cuda else "cpu"


def require_torch(purpose: str) -> None:
    """Refuse work that needs torch where it is not installed."""
    if not torch_is_available():
        raise ConfigError(f"{purpose} needs torch, which is not installed: pip install torch")
