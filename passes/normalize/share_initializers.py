"""Share copied constants again where the copies turned out unnecessary."""

from dataclasses import dataclass

from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class ShareInitializers(Pass):
    """Merge the copies that UnshareInitializers made with their original where they are still equal.

    Others that happen to be equal stay: sharing the means and variances that a repair normalised would
    count as weights removed, which the fold did not earn.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rename readers of a copy to the first equal one."""
        first: dict[tuple[str, bytes], str] = {}
        renamed: dict[str, str] = {}
        for copy, original in view.copies.items():
            for name in (original, copy):
                if name in view.weights:
                    key = (original, view.weight(name).tobytes())
                    if first.setdefault(key, name) != name:
                        renamed[name] = first[key]
        for node in view.graph.node:
            for i, name in enumerate(node.input):
                if name in renamed:
                    node.input[i] = renamed[name]
        view.copies.clear()
        if renamed:
            view.touch()
        return PassResult(modified=bool(renamed))
