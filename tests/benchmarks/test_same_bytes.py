"""The comparison of two revisions' results notices whatever differs, and allows what commits state."""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks.same_bytes import __main__ as same_bytes
from benchmarks.same_bytes import revisions, side
from benchmarks.same_bytes.cases import all_cases
from benchmarks.same_bytes.differences import Difference, compare_case
from benchmarks.same_bytes.models import write_models
from onnxfold.cluster.partitioners import PARTITIONERS
from onnxfold.folding.methods import METHODS, REPAIRS
from testing.models import mlp, random_input

CASE = {"name": "fold", "kind": "fold", "model": "mlp", "options": {"method": "prune-l1", "allocation": "uniform"}}


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """A folder of models, and one with the result of a fold."""
    root = tmp_path_factory.mktemp("same_bytes")
    models, out = root / "models", root / "before"
    models.mkdir()
    out.mkdir()
    onnx.save(mlp(0), models / "mlp.onnx")
    np.savez(models / "mlp.npz", **random_input(mlp(0), 1))
    return models, out, side.Side(models, out).run(CASE)


@pytest.fixture
def differ(folded, tmp_path):
    """Compare that result with another one, of a model that `edit` has changed."""
    models, out, before = folded

    def difference(after=None, edit=None, *, same_version=True):
        model = onnx.load(out / "fold.onnx")
        if edit is not None:
            edit(model)
            after = {**before, "graph": "other", "file": "other"}
        onnx.save(model, tmp_path / "fold.onnx")
        after = {**before, **(after or {})}
        return compare_case("fold", before, after, (out, tmp_path), models / "mlp.npz", same_version=same_version)

    return difference


def _report(folded, **changes):
    return {"report": {**folded[2]["report"], **changes}}


def _scale(factor):
    def edit(model) -> None:
        weight = model.graph.initializer[0]
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), weight.name))

    return edit


def test_the_same_fold_again_is_the_same(folded, tmp_path, differ) -> None:
    assert "error" not in folded[2]
    assert differ(side.Side(folded[0], tmp_path).run(CASE)) is None


def test_a_changed_byte_is_noticed(differ) -> None:
    assert differ({"file": ["other"]}) == Difference("fold", "file", "other bytes")
    # Another version stands in the file, and nowhere else.
    assert differ({"file": ["other"]}, same_version=False) is None


def test_a_changed_weight_is_rounding_only_as_far_as_outputs_allow(differ) -> None:
    little, much = differ(edit=_scale(1 + 1e-6)), differ(edit=_scale(1.01))
    assert (little.what, little.is_rounding) == ("weights", True)
    assert (much.what, much.is_rounding) == ("weights", False)
    assert "weight gemm_0_w by 0.01, output y by 0.0" in much.details


def test_a_changed_node_is_noticed(differ) -> None:
    found = differ(edit=lambda model: model.graph.node[1].__setattr__("op_type", "Sigmoid"))
    assert (found.what, found.is_rounding) == ("graph", False)
    assert found.details.startswith("Relu relu_0")
    assert "-> Sigmoid relu_0" in found.details


def test_a_changed_width_is_noticed(folded, differ) -> None:
    groups = [dict(group) for group in folded[2]["report"]["groups"]]
    groups[0]["folded_width"] -= 1
    found = differ(_report(folded, groups=groups))
    width = groups[0]["folded_width"]
    assert found == Difference("fold", "widths", f"('gemm_0', 12, {width + 1}) -> ('gemm_0', 12, {width})")


def test_a_changed_error_is_noticed(differ) -> None:
    assert differ({"error": "BudgetError: no"}) == Difference("fold", "error", "no error -> BudgetError: no")


def test_a_changed_report_is_noticed(folded, differ) -> None:
    number = differ(_report(folded, sparsity=0.123))
    assert number == Difference("fold", "report", "report: sparsity", is_rounding=True)
    entry = differ(_report(folded, more=1))
    assert entry == Difference("fold", "report", "report: more (new)")
    note = differ(_report(folded, requested="everything"))
    assert note == Difference("fold", "report", "report: requested")


def test_what_crashes_on_both_sides_is_not_the_same(tmp_path) -> None:
    crashed = side.Side(tmp_path, tmp_path).run({"name": "a", "kind": "missing", "model": "mlp", "options": {}})
    assert crashed["crash"].startswith("AttributeError")
    assert compare_case("a", crashed, crashed, (tmp_path, tmp_path), tmp_path, same_version=True).what == "crash"


@pytest.mark.parametrize(
    ("rounding", "bits", "results", "code"),
    [(True, [], [], 1), (True, ["why"], [], 0), (False, ["why"], [], 1), (False, [], ["why"], 0)],
)
def test_only_a_stated_reason_lets_results_differ(rounding, bits, results, code, capsys) -> None:
    assert same_bytes.judge([Difference("a", "weights", "x | y", rounding)], bits, results) == code
    assert "| a | weights" in capsys.readouterr().out
    assert same_bytes.judge([], [], []) == 0


def test_every_row_of_every_table_is_folded() -> None:
    cases = [case for case in all_cases([]) if "error" not in case.name]
    used = {key: {case.options.get(key) for case in cases} for key in ("method", "cluster", "repair", "allocation")}
    assert set(METHODS) <= used["method"]
    assert set(PARTITIONERS) <= used["cluster"]
    assert set(REPAIRS) <= used["repair"]
    assert {"global", "uniform"} <= used["allocation"]
    assert len({case.name for case in cases}) == len(cases)


def test_every_case_has_its_model(tmp_path) -> None:
    names = write_models(tmp_path, [0])
    missing = {case.model for case in all_cases(names)} - {path.stem for path in tmp_path.glob("*.onnx")}
    assert missing == {"no_such_model"}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Two commits on main, the second of which states why bits change."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "a")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@b.c")
    subprocess.run(["git", "init", "-q", "-b", "main", tmp_path], check=True)
    for number, message in enumerate(("one", "two\n\nChanges-bits: sums are\n  compensated")):
        (tmp_path / "file").write_text(str(number))
        revisions.git(tmp_path, "add", "file")
        revisions.git(tmp_path, "commit", "-q", "-m", message)
    return tmp_path


def test_revisions(repository) -> None:
    first = revisions.commit(repository, "HEAD^")
    assert revisions.parent_of_work(repository) == first
    assert revisions.reasons(repository, first, revisions.BITS) == ["sums are compensated"]
    assert revisions.reasons(repository, first, revisions.RESULTS) == []
    with revisions.checked_out(repository, first) as tree:
        assert (tree / "file").read_text() == "0"
    assert not tree.exists()
    revisions.git(repository, "checkout", "-q", "-b", "work")
    revisions.git(repository, "commit", "-q", "--allow-empty", "-m", "three")
    revisions.git(repository, "commit", "-q", "--allow-empty", "-m", "four")
    assert revisions.parent_of_work(repository) == revisions.commit(repository, "main")


def test_a_revision_that_is_not_there_is_one_line(capsys) -> None:
    assert same_bytes.main(["--parent", "no-such-revision"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_side_must_run_its_own_code(tmp_path) -> None:
    """A checkout without a package: Python finds the one that is installed."""
    (tree := tmp_path / "tree").mkdir()
    (cases := tmp_path / "cases.json").write_text(json.dumps([]))
    process = same_bytes.start(tree, cases, tmp_path, out := tmp_path / "out")
    with pytest.raises(same_bytes.SideError, match=r"imported code from elsewhere|No module named 'onnxfold'"):
        same_bytes.finish(process, tree, out, 60)


@pytest.mark.parametrize("notes", [[], ["a note"]])
def test_whether_a_fold_came_out_slower_by_the_clock_is_no_difference(notes: list[str]) -> None:
    slower = "the folded model is slower than its input by 9%: latency 1 -> 1.09 ms"
    texts = ["\n".join(["weights", "latency 1 -> 1 ms", *notes, *more]) for more in ([], [slower])]
    assert side.without_latencies(texts[0]) == side.without_latencies(texts[1]) == "\n".join(["weights", *notes])
