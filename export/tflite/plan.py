"""One layout per tensor, chosen to minimise the elements that are transposed.

Tensors that operators tie together (the two sides of an Add, what goes through a Relu) form a cluster with one layout.
Clusters are visited in order, and each takes the layout that costs least next to its neighbours, until none changes:
iterated conditional modes, from two starting points. A tensor costs its number of elements for every layout that is
asked of it beside its
own.
"""

import math
from collections import defaultdict
from collections.abc import Mapping

from onnxfold.export.tflite.layout import Layout, Shape, channels_last, plain
from onnxfold.export.tflite.layout_rules import LayoutRule, NodeShapes

_MAX_SWEEPS = 20
#: What an operator costs beside its elements.
_OPERATOR = 1000


class _Planner:
    def __init__(
        self, ops: list[tuple[NodeShapes, LayoutRule]], shapes: Mapping[str, Shape], fixed: Mapping[str, Layout]
    ) -> None:
        self._ops = ops
        self._shapes = shapes
        self._fixed = fixed
        self._cluster = {t: t for t in shapes}
        for op, rule in ops:
            tied = rule.ties(op)
            for tensor in tied[1:]:
                self._cluster[self._root(tensor)] = self._root(tied[0])
        self._members: dict[str, list[str]] = defaultdict(list)
        for tensor in shapes:
            self._members[self._root(tensor)].append(tensor)
        self._readers: dict[str, list[int]] = defaultdict(list)
        for i, (op, _) in enumerate(ops):
            for tensor in (*op.reads, *op.writes):
                self._readers[tensor].append(i)
        self._candidates = {root: self._offered_layouts(root) for root in self._members}

    def _root(self, tensor: str) -> str:
        while self._cluster[tensor] != tensor:
            self._cluster[tensor] = self._cluster[self._cluster[tensor]]
            tensor = self._cluster[tensor]
        return tensor

    def _offered_layouts(self, root: str) -> list[Layout]:
        rank = len(self._shapes[root])
        layouts = dict.fromkeys((plain(rank), channels_last(rank)))
        for tensor in self._members[root]:
            for i in self._readers[tensor]:
                op, rule = self._ops[i]
                layouts.update((layout, None) for t, layout in rule.offers(op) if t == tensor)
        return list(layouts)

    def solve(self, start: int) -> tuple[int, dict[str, Layout]]:
        """Return cost and layouts, from the first (0) or the second (1) candidate of every cluster."""
        assigned: dict[str, Layout] = {}
        for root, members in self._members.items():
            layouts = self._candidates[root]
            assigned.update(dict.fromkeys(members, layouts[min(start, len(layouts) - 1)]))
        for _ in range(_MAX_SWEEPS):
            changed = 0
            for root in self._members:  # all of them, in every sweep
                changed += self._improve(root, assigned)
            if not changed:
                break
        return self._cost(self._shapes, assigned), assigned

    def _improve(self, root: str, assigned: dict[str, Layout]) -> bool:
        if len(self._candidates[root]) == 1:
            return False
        before = assigned[root]
        members = self._members[root]
        # Whatever an operator beside the cluster asks of any tensor may change with the cluster's layout.
        beside = {
            t for m in members for i in self._readers[m] for t in (*self._ops[i][0].reads, *self._ops[i][0].writes)
        }
        costs = []
        for layout in self._candidates[root]:
            assigned.update(dict.fromkeys(members, layout))
            costs.append((self._cost(beside, assigned), layout != before, layout))
        best = min(costs, key=lambda c: c[:2])[2]
        assigned.update(dict.fromkeys(members, best))
        return best != before

    def _cost(self, tensors: object, assigned: Mapping[str, Layout]) -> int:
        wanted = {t: {self._fixed[t]} if t in self._fixed else set() for t in tensors}  # type: ignore[attr-defined]
        for i in sorted({i for t in wanted for i in self._readers[t]}):
            op, rule = self._ops[i]
            for tensor, layout in rule.demands(op, assigned):
                if tensor in wanted:
                    wanted[tensor].add(layout)
        return sum(
            len(layouts - {assigned[t]}) * (math.prod(self._shapes[t]) + _OPERATOR) for t, layouts in wanted.items()
        )


def plan_layouts(
    ops: list[tuple[NodeShapes, LayoutRule]], shapes: Mapping[str, Shape], fixed: Mapping[str, Layout]
) -> dict[str, Layout]:
    """Return the layout of every activation."""
    planner = _Planner(ops, shapes, fixed)
    return min((planner.solve(start) for start in (0, 1)), key=lambda s: s[0])[1]
