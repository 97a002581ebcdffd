"""A lossless fold: what is stored twice, dead, or a duplicate goes; outputs stay; other models are copied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.channels.declarations import Role
from onnxfold.channels.group import put_rows_of, rows_of
from onnxfold.cli import cli
from onnxfold.errors import ConfigError, VerificationError
from onnxfold.folding.open_model import open_scopes
from onnxfold.folding.search import criteria
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.inspection import inspect_model
from onnxfold.passes.merge.dead_to_duplicates import dead_units, known_values
from testing.compare import relative_difference
from testing.models import ALL_MODELS, random_input, run
from testing.quick import quick_fold
from tests.folding.test_tables import HIDDEN, IDS, WIDTH, WORDS, sentences

_ROWS = (Role.PRODUCER, Role.BIAS, Role.SCALE, Role.SHIFT, Role.MEAN)


def _without(model: onnx.ModelProto, roles: tuple[Role, ...], unit: int = 1) -> tuple[onnx.ModelProto, int]:
    """Return a model with zeros for a unit of every group in weights of some roles, and how many groups it has."""
    (scope,) = open_scopes(load(model))
    for group in scope.analysis.groups:
        for member in group.members:
            if member.role in roles:
                rows = rows_of(scope.view, member)
                rows[unit] = 0
                put_rows_of(scope.view, member, rows)
    return to_model(scope.view), len(scope.analysis.groups)


def _same(a: onnx.ModelProto, b: onnx.ModelProto, feeds: dict[str, Any] | None = None) -> bool:
    feeds = feeds or random_input(a, 3)
    return all(relative_difference(x, y) < 1e-5 for x, y in zip(run(a, feeds), run(b, feeds), strict=True))


@pytest.mark.parametrize("roles", [(Role.CONSUMER,), _ROWS], ids=["unread", "zero"])
@pytest.mark.parametrize("name", sorted(ALL_MODELS))
def test_dead_channels_go(name: str, roles: tuple[Role, ...]) -> None:
    """What is declared dead changes no output, whatever the network."""
    model, count = _without(ALL_MODELS[name](0), roles)
    spare = inspect_model(model).spare
    result = onnxfold.fold(model, lossless=True, verify=False)
    assert _same(model, result.model)
    assert result.report.before.parameters - result.report.after.parameters == pytest.approx(spare, abs=40)
    gone = [g for g in result.report.groups if g.folded_width < g.width]
    if name in ("chain_conv", "chain_conv_plain", "mlp", "mlp_bn", "residual", "flatten_conv", "conv3d"):
        assert len(gone) == count > 0
        assert spare > 0


def test_a_bias_that_no_activation_lets_through_is_dead_and_another_is_not() -> None:
    for bias, is_dead in ((-1.0, True), (1.0, False)):
        weights = {
            "w": np.ones((4, 6), np.float32) * np.arange(1, 7, dtype=np.float32) * (np.arange(6) != 2),
            "b": np.full(6, 0.5, np.float32) + np.float32(bias - 0.5) * (np.arange(6) == 2),
            "v": np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32),
        }
        nodes = [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], "first"), helper.make_node("Relu", ["h"], ["a"], "relu"),
            helper.make_node("Gemm", ["a", "v"], ["y"], "second"),
        ]  # fmt: skip
        infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", d]) for n, d in (("x", 4), ("y", 3))]
        made = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()]
        graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], made)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (scope,) = open_scopes(load(model))
        (group,) = scope.analysis.groups
        assert dead_units(scope.view, group, known_values(scope.view, group)).tolist() == [
            i == 2 and is_dead for i in range(6)
        ]


@pytest.mark.parametrize(("name", "is_padded"), [("mlp", False), ("chain_conv", True)])
def test_a_constant_goes_into_the_biases_of_those_that_read_it(name: str, is_padded: bool) -> None:
    """A channel whose rows are zero is its bias, or what follows makes of that; at a padded border it is not."""
    model, count = _without(ALL_MODELS[name](0), (Role.PRODUCER,))
    (scope,) = open_scopes(load(model))
    for group in scope.analysis.groups:
        for member in group.with_role(Role.BIAS):
            rows = rows_of(scope.view, member)
            rows[1] = 0.75
            put_rows_of(scope.view, member, rows)
    model = to_model(scope.view)
    spare = inspect_model(model).spare
    result = onnxfold.fold(model, lossless=True)
    assert _same(model, result.model)
    gone = sum(group.folded_width < group.width for group in result.report.groups)
    assert 0 < gone <= count
    assert (gone < count) == is_padded
    assert spare > 0


def test_a_head_that_is_its_table_turned_is_stored_once() -> None:
    model = sentences(tied=True)
    result = onnxfold.fold(model, lossless=True)
    assert result.report.after.parameters == WORDS * WIDTH + 2 * WIDTH * HIDDEN + WIDTH
    assert result.report.after.size_bytes < result.report.before.size_bytes - 3 * WORDS * WIDTH
    assert _same(model, result.model, IDS)
    assert inspect_model(model).spare == inspect_model(model).to_dict()["lossless"] == WORDS * WIDTH


def test_every_fold_stores_equal_weights_once_first() -> None:
    model = sentences(tied=True)
    report = quick_fold(model, 0.4, method="fold-naive", verify=False).report
    assert report.sparsity == pytest.approx(WORDS * WIDTH / report.before.parameters)  # no channel went
    assert any("stored once" in note for note in report.notes)


def test_ordinary_folds_merge_dead_channels_at_no_loss() -> None:
    model, _ = _without(ALL_MODELS["chain_conv"](0), (Role.CONSUMER,))
    result = quick_fold(model, ratios={"*": 0.1}, verify=False)
    assert any(group.folded_width < group.width for group in result.report.groups)
    assert _same(model, result.model)


def test_a_model_without_savings_is_copied(tmp_path: Path) -> None:
    model = ALL_MODELS["residual"](0)
    onnx.save(model, tmp_path / "in.onnx")
    args = ["fold", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--lossless"]
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, done.output
    assert "nothing to save without loss" in done.output
    copy = onnx.load(tmp_path / "out.onnx")
    assert copy.graph.SerializeToString(deterministic=True) == model.graph.SerializeToString(deterministic=True)


def test_inspect_says_how_much_could_go(tmp_path: Path) -> None:
    onnx.save(sentences(tied=True), tmp_path / "in.onnx")
    done = CliRunner().invoke(cli, ["inspect", str(tmp_path / "in.onnx")])
    assert f"without loss: {WORDS * WIDTH:,} weights (45.1%) can go" in done.output
    plain = CliRunner().invoke(cli, ["inspect", str(tmp_path / "in.onnx"), "--json"])
    assert json.loads(plain.stdout)["lossless"] == WORDS * WIDTH


@pytest.mark.parametrize(
    "options", [{"sparsity": 0.1}, {"max_params": "1K"}, {"dtype": "int8"}, {"repair": "none"}, {"drop_blocks": 1}]
)
def test_lossless_excludes_what_loses(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"give it without {next(iter(options))}"):
        onnxfold.fold(ALL_MODELS["mlp"](0), lossless=True, **options)


def test_a_result_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = _without(ALL_MODELS["chain_conv"](0), (Role.CONSUMER,))
    monkeypatch.setattr(criteria, "_FINE", -1.0)
    with pytest.raises(VerificationError, match="nothing was written"):
        onnxfold.fold(model, lossless=True)
