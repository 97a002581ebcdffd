"""A clock that only moves when something takes time."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """Seconds that runs add; what else the machine does is added by `slower`, per call of a run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def run(self, name: str, seconds: Callable[[int], float]) -> Callable[[], None]:
        """Return a run that takes ``seconds(n)`` at its n-th call."""
        count = iter(range(10**9))

        def call() -> None:
            self.calls.append(name)
            self.now += seconds(next(count))

        return call
