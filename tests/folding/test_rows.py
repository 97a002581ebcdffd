"""A clustering and a repair are rows: one entry of a table and one function or pass make each of them whole."""

import ast
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import onnxfold
from onnxfold.cluster.clusterings.scores import top_norm
from onnxfold.cluster.gram import Points
from onnxfold.cluster.partition import Labels
from onnxfold.cluster.partitioners import PARTITIONERS, cluster_row
from onnxfold.cluster.plan import FoldPlan
from onnxfold.errors import ConfigError
from onnxfold.folding.methods import METHODS, OUTPUT, REPAIRS, Repair, find_method
from onnxfold.folding.one_graph import find_candidates, fold_graph
from onnxfold.folding.open_model import open_model
from onnxfold.folding.prepare import prepare
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult
from onnxfold.progress import silent
from onnxfold.statistics.observe import Observation
from testing import models
from testing.inputs import model_inputs
from testing.quick import quick_fold
from tests.folding.bodies import choice as with_bodies

ROOT = Path(onnxfold.__file__).parent
#: The tables, and the checks of requests that name what is in them.
TABLES = {"cluster/partitioners.py", "folding/methods.py"}


def _in_order(points: Points, weights: Matrix, k: int) -> Labels:
    """Cut the points into k runs of neighbours."""
    return np.arange(len(points)) * k // len(points)


@dataclass(frozen=True, eq=False)
class _Doubled(Pass):
    """Double the weights that members of shrunken groups lie on; a repair that can be told from every other one."""

    plan: FoldPlan
    observation: Observation | None = None

    def run(self, view: GraphView) -> PassResult:
        for tensor in {m.axis.tensor for group in self.plan.groups for m in group.members}:
            view.set_weight(tensor, 2.0 * view.weight(tensor))
        return PassResult(modified=True)


def test_a_clustering_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = cluster_row("in-order", _in_order, "neighbours in the file")
    monkeypatch.setitem(PARTITIONERS, "in-order", row)
    result = quick_fold(models.mlp(0), channel_ratio=0.5, method="fold-naive", cluster="in-order")
    assert {(g.requested_cluster, g.cluster) for g in result.report.groups} == {("in-order", "in-order")}
    curves = quick_fold(models.mlp(0), 0.4, method="fold-naive", cluster="in-order").report.diagnostics
    assert curves is not None
    assert curves.error_curves  # widths were allocated by the curves of the new row


def test_a_repair_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Repair("doubled", "twice as much", lambda task: (_Doubled(task.plan),))
    monkeypatch.setitem(REPAIRS, "doubled", row)
    plain = quick_fold(models.mlp(0), channel_ratio=0.5, cluster="kmeans", repair="none", verify=False)
    doubled = quick_fold(models.mlp(0), channel_ratio=0.5, cluster="kmeans", repair="doubled", verify=False)
    assert {g.repair for g in doubled.report.groups} == {"doubled"}
    assert "_Doubled" in {record.name for record in doubled.report.passes}
    for name in plain.view.float_weight_names():
        values = plain.view.weight(name)
        assert np.array_equal(doubled.view.weight(name), values) or np.allclose(doubled.view.weight(name), 2 * values)


def test_the_columns_of_a_row_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair that needs inputs gets them, or is replaced in bodies; one that needs averages refuses others."""
    seen: list[Observation] = []

    def passes(task: object) -> tuple[Pass, ...]:
        seen.append(task.observed)  # type: ignore[attr-defined]
        return (_Doubled(task.plan),)  # type: ignore[attr-defined]

    row = Repair("doubled", "twice as much", passes, OUTPUT, needs_inputs=True, needs_averages=True, adds_biases=True)
    monkeypatch.setitem(REPAIRS, "doubled", row)
    report = quick_fold(with_bodies(weights_outside=False), channel_ratio=0.75, repair="doubled", verify=False).report
    assert {g.repair for g in report.groups} <= {"doubled", "approximate"}
    assert any(g.repair == "approximate" for g in report.groups)
    assert any("instead of elimination and doubled" in note for note in report.notes)
    quick_fold(models.mlp(0), channel_ratio=0.5, repair="doubled", verify=False)
    assert seen
    assert seen[-1].inputs
    with pytest.raises(ConfigError, match="averages nothing: take none, recalibrate, least-squares or bias"):
        quick_fold(models.mlp(0), channel_ratio=0.5, cluster="top-l1", repair="doubled")


@pytest.mark.parametrize("name", [*METHODS, *PARTITIONERS, *(r for r in REPAIRS if r != "none")])
def test_no_name_decides_outside_the_tables(name: str) -> None:
    """Nothing in the package compares with the name of a row: a new row would be treated as none of the old ones."""
    found = []
    for path in (*ROOT.rglob("*.py"), *(ROOT / "passes").rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        if where not in TABLES and name in path.read_text(encoding="utf-8"):
            found += [where for node in ast.walk(ast.parse(path.read_text())) if _compares(node, name)]
    assert not found


def _compares(node: ast.AST, name: str) -> bool:
    parts = [*node.comparators, node.left] if isinstance(node, ast.Compare) else []
    flat = [leaf for part in parts for leaf in ast.walk(part)]
    return any(isinstance(leaf, ast.Constant) and leaf.value == name for leaf in flat)


def test_what_is_stored_is_compared_at_every_width() -> None:
    """Rows are scaled for the repair before a partition is asked for; a norm is that of the rows as they are stored."""
    opened = open_model(models.residual(0), {}, silent)
    method = find_method("prune-l1", repair="least-squares")
    (graph,) = prepare(opened, method, model_inputs(opened.view, "noise", samples=16), 0).graphs
    stored = opened.view.copy()
    widths = [max(group.size // 2, group.block_count) for group in graph.groups]
    folded = fold_graph(replace(graph, candidates=find_candidates(graph)), widths)
    for group, partition in folded.plan:
        expected = top_norm(stored, group, partition.clusters, order=1)
        np.testing.assert_array_equal(partition.representatives, expected.representatives)
