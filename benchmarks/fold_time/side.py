"""Fold once and tell the seconds of every phase: ``python -P side.py MODEL OPTIONS.json``, a checkout on PYTHONPATH.

It runs under revisions that do not have it, so it uses the public API only and imports nothing of this folder. Phases
are told apart by what the progress callback is told. Prints one line of JSON.
"""

import json
import resource
import sys
import time

_CLOCKS = ("cpu", "wall")
_BEGAN = time.perf_counter()


def main(arguments: list[str]) -> None:
    """Fold and print."""
    model, options = arguments[0], json.loads(arguments[1])
    phases: dict[str, list[float]] = {}
    doing, since = "import onnxfold", [0.0, 0.0]

    def tell(text: str, done: int = 0, steps: int = 0) -> None:
        nonlocal doing, since
        now = _now()
        spent = phases.setdefault(doing, [0.0, 0.0])
        for i in range(len(_CLOCKS)):
            spent[i] += now[i] - since[i]
        doing, since = text, now

    import onnxfold

    result = onnxfold.fold(model, progress=tell, **options)
    tell("")
    inputs = result.report.inputs
    told = "" if inputs is None else f"{inputs.samples} x {inputs.kind}: {inputs.reason}"
    print(json.dumps({
        "phases": {text: dict(zip(_CLOCKS, spent, strict=True)) for text, spent in phases.items()},
        "total": dict(zip(_CLOCKS, _now(), strict=True)),
        "inputs": told,
        "removed": result.report.sparsity,
        "peak": _peak(),
        "file": onnxfold.__file__,
    }))  # fmt: skip


def _peak() -> int:
    """Return the most bytes that this process or one of its children held."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _now() -> list[float]:
    """Return the processor seconds of this process and its children so far, and the seconds since it began."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return [sum(u.ru_utime + u.ru_stime for u in used), time.perf_counter() - _BEGAN]


if __name__ == "__main__":
    main(sys.argv[1:])
