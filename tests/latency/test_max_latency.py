"""A limit of latency: predicted from a table, corrected by measuring, replayed without a clock."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

import onnxfold
from onnxfold.api import FoldResult
from onnxfold.budget.costs.running import LatencyCost
from onnxfold.cli import cli
from onnxfold.config import FoldConfig
from onnxfold.errors import BudgetError, ConfigError, NotMeasurableError
from onnxfold.folding.open_model import OpenedModel, open_model
from onnxfold.folding.probes import measure_latency
from onnxfold.folding.probes.measure_latency import measure_table
from onnxfold.folding.search import latency_search
from onnxfold.graph.files.load import load
from onnxfold.latency.micro_models import LayerShape, measure_shape, pairs_of, widths_of
from onnxfold.latency.table import LatencyTable
from onnxfold.progress import ProgressBar, fold_stages, silent
from testing import models
from testing.graph_builder import GraphBuilder
from testing.quick import QUICK
from tests.latency.law import Law, Machine, blocks_of_8, blocks_of_16


def wide() -> onnx.ModelProto:
    """Return a residual net of depthwise and plain convolutions, and a classifier."""
    g = GraphBuilder("wide", 0, (3, 12, 12))
    h = g.relu(g.conv("x", 32))
    branch = g.relu(g.conv(h, 64, kernel=1))
    branch = g.relu(g.conv(branch, 64, groups=64))
    h = g.relu(g.add(h, g.conv(branch, 32, kernel=1)))
    h = g.relu(g.conv(h, 48))
    g.output(g.head(h))
    return g.build()


@pytest.fixture(scope="module")
def opened() -> OpenedModel:
    return open_model(wide(), {}, silent)


def _use(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Let folds measure on a machine without a clock."""
    monkeypatch.setattr(measure_latency, "profile_network", machine.profile)
    monkeypatch.setattr(measure_latency, "measure_shape", machine.measure)
    monkeypatch.setattr(latency_search, "real_timer", lambda opened, threads: machine.timer(load(opened.source)))
    return machine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return _use(Machine(), monkeypatch)


def _fold(limit: str | float, **options: Any) -> FoldResult:
    return onnxfold.fold(wide(), max_latency=limit, cache="none", **{**QUICK, "repair": "none", **options})


def test_cost_is_what_the_folded_model_takes(opened: OpenedModel, machine: Machine) -> None:
    """Every layer follows the law that it was measured by, at widths that were not measured, too."""
    table = measure_table(opened, FoldConfig(max_latency="0.5x", cache="none"), silent)
    cost = LatencyCost(opened.graphs, table)
    sizes = [group.size for _, groups in opened.graphs for group in groups]
    assert cost(sizes) == pytest.approx(table.dense_s * 1e9, rel=1e-3)
    for ratio in (0.25, 0.5, 0.75):
        folded = onnxfold.fold(wide(), channel_ratio=ratio, round_to=8, method="prune-l2", verify=False)
        widths = [group.folded_width for group in folded.report.groups]
        assert cost(widths) == pytest.approx(machine.seconds(folded.view) * 1e9, rel=0.02)
        assert cost(widths) < cost(sizes)


def test_each_shape_is_measured_once(opened: OpenedModel, machine: Machine, tmp_path: Path) -> None:
    config = FoldConfig(max_latency="0.5x", cache=tmp_path)
    first = measure_table(opened, config, silent)
    assert len(machine.measured) == len(set(machine.measured)) == len(first.layers) + 1  # one tells the block
    again = measure_table(opened, config, silent)
    assert len(machine.measured) == len(first.layers) + 1, "what is in the cache is not measured again"
    assert again == first


@pytest.mark.parametrize(("limit", "least"), [("0.6x", 0.5), ("0.4x", 0.3)])
def test_the_limit_holds(machine: Machine, limit: str, least: float) -> None:
    result = _fold(limit)
    ratio = machine.seconds(result.view) / machine.seconds(load(wide()))
    assert least <= ratio <= float(limit[:-1]) * 1.05
    assert any("was measured for the limit" in note and "9 rounds" in note for note in result.report.notes)


def test_widths_are_those_that_save_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a block saves nothing, and odd widths cost time: neither is worth an error."""
    machine = _use(Machine(blocks_of_16), monkeypatch)
    for options in ({"max_latency": "0.6x"}, {"max_latency": "0.6x", "sparsity": 0.3}):
        result = onnxfold.fold(wide(), cache="none", **{**QUICK, **options})
        table = result.report.latency_table
        assert table is not None
        assert table["block"] == 16
        assert [g.folded_width % 16 for g in result.report.groups] == [0, 0, 0]
        assert machine.seconds(result.view) <= 0.6 * 1.05 * machine.seconds(load(wide()))


def test_its_steps_belong_to_the_stages_of_the_progress(machine: Machine) -> None:
    known = fold_stages(measures=True)
    bar, stages = ProgressBar(known), []

    def tell(text: str, done: int, total: int) -> None:
        bar(text, done, total)
        stages.append((str(bar).split(":")[0], text))

    _fold("0.6x", progress=tell)
    first_words = {word.split(" ")[0] for texts in known for word in texts}
    assert {text.split(" ")[0] for _, text in stages} <= first_words
    assert ("stage 3 of 10", "measure layers") in stages
    assert ("stage 6 of 10", "measure folds") in stages


def test_milliseconds_are_a_limit_too(machine: Machine) -> None:
    limit = 0.6 * machine.seconds(load(wide())) * 1e3
    for given in (limit, f"{limit:.9f}ms"):
        assert machine.seconds(_fold(given).view) * 1e3 <= limit * 1.05


def _half_as_much_saved(shape: LayerShape, inputs: int, outputs: int) -> float:
    """In the network, half of what a layer takes is there at any width."""
    full = blocks_of_8(shape, 64, 64)
    return 0.5 * blocks_of_8(shape, inputs, outputs) + 0.2 * full


def test_what_the_table_gets_wrong_is_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _use(Machine(in_network=_half_as_much_saved), monkeypatch)
    result = _fold("0.7x")
    assert machine.timed > 1, "the first widths do not hold the limit"
    assert machine.seconds(result.view) <= 0.7 * 1.05 * machine.seconds(load(wide()))
    table = result.report.latency_table
    assert table is not None
    assert table["correction"] > 1.05


def test_the_table_of_a_report_gives_the_same_bytes_without_a_clock(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = _fold("0.6x")
    report = tmp_path / "r.json"
    report.write_text(result.report.to_json())
    monkeypatch.setattr(measure_latency, "profile_network", None)
    monkeypatch.setattr(latency_search, "real_timer", None)
    for table in (report, result.report.latency_table):
        again = _fold("0.6x", latency_table=table)
        assert again.model.SerializeToString() == result.model.SerializeToString()


def test_the_profile_of_a_board_names_the_report_of_a_fold_that_was_done_there(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = {"round_to": 8}  # without a step of its own, a board's memory takes any widths
    result = _fold("0.6x", **steps)
    (tmp_path / "there.json").write_text(result.report.to_json())
    known = (files("onnxfold.budget") / "devices" / "jetson-nano.toml").read_text()
    (tmp_path / "board.toml").write_text(f'latency_table = "there.json"\n{known}')
    monkeypatch.setattr(measure_latency, "profile_network", None)
    monkeypatch.setattr(latency_search, "real_timer", None)
    again = _fold("0.6x", device=tmp_path / "board.toml", **steps)
    assert [g.folded_width for g in again.report.groups] == [g.folded_width for g in result.report.groups]


def test_a_machine_whose_ratios_are_steady_need_not_be_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input and the fold are slowed down alike."""
    machine = _use(Machine(spread=0.3), monkeypatch)
    result = _fold("0.6x")
    assert machine.seconds(result.view) <= 0.6 * 1.05 * machine.seconds(load(wide()))


def test_few_slow_rounds_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _use(Machine(noise=lambda i: 3.0 if i % 4 == 0 else 1.0), monkeypatch)
    for limit in ("0.6x", f"{600 * machine.seconds(load(wide())):.9f}ms"):
        assert machine.seconds(_fold(limit).view) <= 0.6 * 1.05 * machine.seconds(load(wide()))


def test_what_does_not_decide_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rounds are slow; in the first try alone, every interval would reach beyond the limit."""
    machine = _use(Machine(noise=lambda i: 1.3 if i < 9 and i % 3 == 0 else 1.0), monkeypatch)
    result = _fold("0.6x", tolerance=1.0)
    (note,) = [note for note in result.report.notes if "was measured for the limit" in note]
    assert "18 rounds" in note or "27 rounds" in note or "9 rounds" in note
    assert machine.seconds(result.view) <= 0.6 * 1.01 * machine.seconds(load(wide()))


def test_a_ratio_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _use(Machine(noise=lambda i: 0.5 if i % 2 else 1.5), monkeypatch)
    with pytest.raises(NotMeasurableError, match=r"not measurable .* takes 0\.\d+x to .* decide .* 0\.6x within 5 %"):
        _fold("0.6x")
    onnx.save(wide(), tmp_path / "m.onnx")
    words = ["fold", str(tmp_path / "m.onnx"), str(tmp_path / "o.onnx"), "--max-latency", "0.6x", "--inputs", "noise"]
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, NotMeasurableError)
    assert done.exception.exit_code == 1
    assert not (tmp_path / "o.onnx").exists()


def test_a_wider_tolerance_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _use(Machine(noise=lambda i: 0.7 if i % 2 else 1.3), monkeypatch)
    with pytest.raises(NotMeasurableError):
        _fold("0.6x", tolerance=1.0)
    assert _fold("0.6x", tolerance=30.0).report.latency_table is not None


def test_what_is_much_faster_than_asked_is_made_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is far too high asks for widths that are far too small: a correction goes down, too."""

    def fast(shape: LayerShape, inputs: int, outputs: int) -> float:
        return blocks_of_8(shape, inputs, outputs) * (0.4 if outputs < 32 else 1.0)

    machine = _use(Machine(in_network=fast), monkeypatch)
    ratio = machine.seconds(_fold("0.6x").view) / machine.seconds(load(wide()))
    assert 0.5 <= ratio <= 0.6 * 1.05


def test_corrections_close_in_on_the_limit() -> None:
    next_correction = latency_search.next_correction
    assert next_correction(1.0, 0.0, 0.6, 0.68) == 0.6  # as measured
    # What the measurement says was there before, and too fast: something between is tried.
    assert next_correction(1.0, 0.6, 1.0, 1.2) == pytest.approx(0.6**0.5)
    assert next_correction(0.6**0.5, 0.6, 1.0, 0.7) == pytest.approx((0.6**0.5 * 0.6) ** 0.5)
    assert next_correction(0.599 * 1.008, 0.6, 1.0, 0.7) is None
    assert next_correction(math.inf, 2.0, 1.9, 1.5) == pytest.approx(3.0)
    assert next_correction(2.0, 0.0, 2.1, 0.7) == pytest.approx(1.4)


def test_an_unreachable_limit_tells_the_closest(machine: Machine) -> None:
    with pytest.raises(BudgetError, match=r"latency .* ms \(limit .* ms\)"):
        _fold("0.01x")


def test_a_limit_that_only_measuring_shows_to_be_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def stubborn(shape: LayerShape, inputs: int, outputs: int) -> float:
        return 0.9 * blocks_of_8(shape, 64, 64) + 0.1 * blocks_of_8(shape, inputs, outputs)

    _use(Machine(in_network=stubborn), monkeypatch)
    with pytest.raises(BudgetError, match=r"the closest is 0\.9"):
        _fold("0.5x")


def _early_and_late() -> onnx.ModelProto:
    """Return a net whose first layers take the time, and whose last ones hold the weights."""
    g = GraphBuilder("early_and_late", 0, (3, 24, 24))
    h = g.relu(g.conv(g.relu(g.conv("x", 32)), 32))
    h = g.max_pool(g.max_pool(h))
    h = g.relu(g.conv(g.relu(g.conv(h, 64)), 64))
    g.output(g.head(h))
    return g.build()


def test_objective_latency_saves_more_latency(machine: Machine) -> None:
    seconds = {}
    for objective in ("weights", "latency"):
        result = onnxfold.fold(_early_and_late(), 0.5, objective=objective, cache="none", **QUICK)
        seconds[objective] = machine.seconds(result.view)
        assert result.report.sparsity == pytest.approx(0.5, abs=0.01)
    assert seconds["latency"] < 0.9 * seconds["weights"]
    assert not machine.timed, "only the table is measured"


def test_uniform_widths_hold_it_too(machine: Machine) -> None:
    result = _fold("0.6x", allocation="uniform", method="prune-l2")
    assert machine.seconds(result.view) <= 0.6 * 1.05 * machine.seconds(load(wide()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "jetson-nano"}, "on the device itself"),
        ({"channel_ratio": 0.5}, "without limits"),
        ({"min_fidelity": 0.9}, "without sparsity"),
        ({"sparsity": 0.0, "dtype": "int8"}, "measured in floats"),
    ],
)
def test_what_does_not_go_together(machine: Machine, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _fold("0.6x", **options)


@pytest.mark.parametrize("limit", ["fast", "0ms", "-1ms", "1.5x", "0x", "1e9s", "3.5 parsecs", "x", ""])
def test_a_limit_that_makes_no_sense(limit: str) -> None:
    with pytest.raises(ConfigError, match="is no limit of latency"):
        FoldConfig(max_latency=limit)


def _table() -> dict[str, Any]:
    return LatencyTable(1e-3, {"y": 1e-3}, {"key": ((8, 8, 1e-6),)}).to_dict()


@pytest.mark.parametrize(
    "wrong",
    [
        [], {}, {"latency_table": None}, {"dense_s": "1"}, {"dense_s": -1.0}, {"dense_s": float("nan")},
        {"dense_s": True}, {"nodes": []}, {"nodes": {"y": -1.0}}, {"layers": {"key": 3}}, {"layers": {"key": [[8, 8]]}},
        {"layers": {"key": [[8, 0, 1.0]]}}, {"layers": {"key": [[8, 8, float("inf")]]}}, {"block": 0}, {"block": 8.0},
        {"threads": 10**9}, {"correction": 0.0}, {"machine": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_table_that_is_none(wrong: Any) -> None:
    given = {**_table(), **wrong} if isinstance(wrong, dict) and wrong and "latency_table" not in wrong else wrong
    with pytest.raises(ConfigError):
        LatencyTable.from_dict(given)
    assert LatencyTable.from_dict(_table()).to_dict() == _table()


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    for content in (b"", b"[", b"\xff\xfe", json.dumps({"a": 1}).encode()):
        (tmp_path / "t.json").write_bytes(content)
        with pytest.raises(ConfigError):
            _fold("0.6x", latency_table=tmp_path / "t.json")
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(ConfigError):
            _fold("0.6x", latency_table=path)
    with pytest.raises(ConfigError, match="changes nothing"):
        FoldConfig(latency_table=tmp_path / "t.json")


def test_measured_widths() -> None:
    assert widths_of(64, 8) == [16, 32, 64]
    assert widths_of(10, 16) == [10]
    assert widths_of(40, 16) == [16, 32, 40]
    assert pairs_of(LayerShape("matmul", 6, 4, (True, False), (1,)), 8) == [(2, 4), (3, 4), (6, 4)]
    assert pairs_of(LayerShape("depthwise", 32, 32, (True, True), (1, 4, 4)), 8) == [(8, 8), (16, 16), (32, 32)]


SHAPES = [
    LayerShape("conv", 32, 32, (True, True), (1, 8, 8), (("kernel_shape", (3, 3)), ("pads", (1, 1, 1, 1)))),
    LayerShape("conv", 3, 16, (False, True), (1, 8, 8), (("kernel_shape", (3, 3)), ("strides", (2, 2)))),
    LayerShape("conv", 12, 16, (True, True), (1, 20), (("kernel_shape", (3,)),)),
    LayerShape("depthwise", 32, 32, (True, True), (1, 8, 8), (("kernel_shape", (3, 3)),)),
    LayerShape("matmul", 64, 32, (True, True), (4,)),
    LayerShape("matmul", 64, 32, (True, True), (4,), (("transB", 1),)),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.kind}-{shape.inputs}-{len(shape.data)}")
def test_onnxruntime_measures_every_kind_of_layer(shape: LayerShape) -> None:
    samples = measure_shape(shape, pairs_of(shape, 8), 1e-4, threads=1)
    assert [(a, b) for a, b, _ in samples] == pairs_of(shape, 8)
    assert all(0.0 < seconds < 1.0 for _, _, seconds in samples)


@pytest.mark.usefixtures("machine")
def test_layers_of_real_nets_are_found() -> None:
    """Every Conv, MatMul and Gemm with weights of these nets can be measured alone."""
    for name in ("residual", "depthwise_separable", "mlp", "matmul_bias_sequence", "gemm_variants"):
        found = open_model(models.ALL_MODELS[name](0), {}, silent)
        table = measure_table(found, FoldConfig(max_latency="0.5x", cache="none"), silent)
        assert table.layers, name
    law: Law = blocks_of_8
    assert law(SHAPES[0], 8, 8) < law(SHAPES[0], 16, 8)


def test_fold_by_command_with_the_real_clock(tmp_path: Path) -> None:
    """Everything is real; a machine that runs tests is busy."""
    onnx.save(wide(), tmp_path / "m.onnx")
    arguments = ["fold", str(tmp_path / "m.onnx"), str(tmp_path / "o.onnx"), "--max-latency", "0.9x", "--no-cache"]
    arguments += ["--tolerance", "20"]
    more = ["--inputs", "noise", "--samples", "8", "--report", str(tmp_path / "r.json")]
    done = CliRunner().invoke(cli, [*arguments, *more])
    if done.exit_code == 0:
        assert json.loads((tmp_path / "r.json").read_text())["latency_table"]["nodes"]
    else:  # such a small network may take as long at any width on a busy machine
        assert isinstance(done.exception, BudgetError | NotMeasurableError), done.output
