"""Notes on a model, taken before its channels are folded in place."""

from dataclasses import dataclass

from onnxfold.folders import ModelFolder, with_changes
from onnxfold.folding.after.draw_network import DrawnNode, draw_network
from onnxfold.folding.blocks.drop_blocks import Dropped
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.cache_heads import Heads, cache_heads


@dataclass(frozen=True, eq=False)
class BeforeFold:
    """The facts about the model before the fold that the report and the folder of a result need."""

    start: float  # when the work began, by the performance counter
    dropped: Dropped  # what was dropped, and the model that is left
    network: list[DrawnNode]  # its main graph as a picture
    heads: Heads | None  # heads in its caches; None where caches stay as they are

    @classmethod
    def of(cls, dropped: Dropped, start: float) -> "BeforeFold":
        """Return the facts about a model that its fold changes."""
        opened, config = dropped.task.opened, dropped.task.config
        network = draw_network(opened.scopes[0].analysed, opened.scopes[0].analysis.groups)
        return cls(start, dropped, network, cache_heads(opened.view) if config.allow_cache_change else None)

    def update_folder(self, folder: ModelFolder | None, after: GraphView) -> tuple[ModelFolder | None, tuple[str, ...]]:
        """Return a folder whose copy states the new sizes of the caches, and notes on them."""
        if self.heads is None:
            return folder, ()
        return with_changes(folder, self.heads, cache_heads(after), self.dropped.layers_left)
