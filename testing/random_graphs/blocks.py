"""Tables of blocks, which place an operator on a tensor."""

from __future__ import annotations

from collections.abc import Callable

from testing.random_graphs.network import Network

Block = Callable[[Network, str, str], str]
Placement = tuple[Block, range, float]


class Blocks:
    """Blocks of a family by the operators that they place, in the order of their registration."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[Placement]] = {}

    def __call__(self, *names: str, ranks: tuple[int, int] = (1, 4), weight: float = 1.0) -> Callable[[Block], Block]:
        """Register a block under the operators that it places; `ranks` without the batch."""

        def register(function: Block) -> Block:
            for name in names:
                self.by_name.setdefault(name, []).append((function, range(ranks[0], ranks[1] + 1), weight))
            return function

        return register
