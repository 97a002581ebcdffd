"""Share copied constants again where the copies turned out unnecessary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class ShareInitializers(Pass):
    """Merge the copies that UnshareInitializers made with their original where they are still equal.

    Notes
    -----
    Others that happen to be equal stay: sharing the means and variances that a repair normalised would
    count as weights removed, which the fold did not earn.
    """

    #: The copies, with the names of what they are copies of, as :class:`~onnxfold.passes.base.PassResult` has them.
    copies: Mapping[str, str] = field(default_factory=dict)

    def run(self, view: GraphView) -> PassResult:
        """Rename readers of a copy to the first equal one."""
        first: dict[tuple[str, bytes], str] = {}
        renamed: dict[str, str] = {}
        for copy, original in self.copies.items():
            for name in (original, copy):
                if name in view.weights:
                    key = (original, view.weight(name).tobytes())
                    if first.setdefault(key, name) != name:
                        renamed[name] = first[key]
        return PassResult(view.rename_inputs(renamed))
