"""The part of a language model's depth that a method folds."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfold.channels import FoldGroup


@dataclass(frozen=True)
class Depth:
    """Blocks from one fraction of the depth to another; a block lies where its middle does."""

    start: float = 0.0  # fractions of the number of blocks
    stop: float = 1.0

    def outside(self, groups: Sequence[FoldGroup]) -> list[int]:
        """Return the indices of the groups that lie in other blocks.

        Every block has heads and feed-forward channels, so the groups of either kind are counted in the order of the
        graph. Groups whose widths are tied over all layers lie nowhere.
        """
        indices = []
        for apart in (False, True):
            alike = [i for i, group in enumerate(groups) if group.apart is apart]
            places = {index: (rank + 0.5) / len(alike) for rank, index in enumerate(alike)}
            indices += [i for i, place in places.items() if not self.start <= place < self.stop]
        return sorted(i for i in indices if groups[i].tie is None)


#: All blocks.
WHOLE_DEPTH = Depth()
