"""A folded network is trained to answer as the original does; it is kept only if held-out answers come closer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxfold
from onnxfold.budget.costs.running import count_token_macs
from onnxfold.cli import cli
from onnxfold.config import FoldConfig
from onnxfold.errors import MemoryLimitError, UnsupportedModelError, VerificationError
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.graph.files.load import load
from onnxfold.html_report import command_line
from onnxfold.html_report.sections import render_html
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.tokens.language_model import ANCESTRAL, Sampling
from onnxfold.progress import silent
from onnxfold.report import RefinementRecord
from onnxfold.sweeps.job import Goal, Job
from onnxfold.torch_graph.norms import norm_weights
from testing import models
from testing.genai_models import genai_decoder
from testing.language_models import decoder, encoder
from tests.hostile import conftest

torch = pytest.importorskip("torch")
from onnxfold.folding.after import refine, refine_samples, training  # noqa: E402
from onnxfold.torch_graph.executor import unsupported_ops  # noqa: E402
from onnxfold.torch_graph.module import trained_weights  # noqa: E402
from onnxfold.torch_graph.orthogonal import RelativeSteps, half_cosine  # noqa: E402

FAST: dict[str, Any] = {"samples": 24, "cache": None, "verify": False, "inputs": "noise"}
PRUNED: dict[str, Any] = {"channel_ratio": 0.4, "method": "prune-l1", **FAST}
REFINED: dict[str, Any] = PRUNED | {"refine": "all", "refine_steps": 30}


def _weights(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def _record(result: onnxfold.FoldResult) -> RefinementRecord:
    record = result.report.refinement
    assert record is not None
    return record


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "grouped queries": lambda: genai_decoder("packed"),
    "decomposed": lambda: decoder(layers=2),
    "states": encoder,
    "batch norm": lambda: models.residual(0),
}


@pytest.mark.parametrize("what", ["all", "norms"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_answers_come_closer_and_only_what_trains_changes(make: Callable[[], onnx.ModelProto], what: str) -> None:
    model = make()
    plain = onnxfold.fold(model, **PRUNED)
    result = onnxfold.fold(model, **PRUNED, refine=what, refine_steps=30)
    record = _record(result)
    assert plain.report.refinement is None
    assert (record.what, record.steps, record.kept, record.note) == (what, 30, True, "")
    assert record.loss_after < 0.97 * record.loss_before
    view = load(plain.model)
    trained = set(norm_weights(view) if what == "norms" else trained_weights(view))
    before, after = _weights(plain.model), _weights(result.model)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert before.keys() == after.keys()
    assert changed
    assert changed <= trained
    assert record.weights == sum(before[name].size for name in trained)
    assert (result.report.config["refine"], result.report.config["refine_steps"]) == (what, 30)
    assert "torch" in result.report.versions


def test_the_same_request_gives_the_same_bytes() -> None:
    made = [onnxfold.fold(encoder(), **REFINED).model for _ in range(2)]
    assert made[0].SerializeToString() == made[1].SerializeToString()


def test_an_original_that_torch_does_not_run_teaches_from_onnxruntime() -> None:
    model = models.residual(0)
    (answer,) = model.graph.output
    model.graph.initializer.append(numpy_helper.from_array(np.eye(2, dtype=np.float32), "square"))
    model.graph.node.extend(
        [
            helper.make_node("Det", ["square"], ["one"]),  # of constants, so that it is folded away
            helper.make_node("Mul", [answer.name, "one"], ["scaled"]),
        ]
    )
    answer.name = "scaled"
    assert unsupported_ops(load(model))
    record = _record(onnxfold.fold(model, **REFINED))
    assert record.steps == 30
    assert record.loss_after < record.loss_before


@pytest.mark.parametrize("given", [False, True])
def test_on_generated_images_matrices_stay_near_the_closed_form(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "RATES", (3e-2,))
    model, random = models.residual(0), np.random.default_rng(0)
    images = random.standard_normal((24, *[d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:]]))
    asked = PRUNED | ({"inputs": "auto", "calibration": {"x": images.astype(np.float32)}} if given else {})
    closed = _weights(onnxfold.fold(model, **asked).model)
    result = onnxfold.fold(model, **asked, refine="all", refine_steps=60)
    assert _record(result).kept
    refined = _weights(result.model)
    moves = [
        np.linalg.norm(refined[name] - values) / np.linalg.norm(values)
        for name, values in closed.items()
        if name in trained_weights(load(result.model)) and values.ndim > 1
    ]
    assert (np.mean(moves) <= 0.0701) == (not given)


def test_what_brings_answers_no_closer_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = onnxfold.fold(encoder(), **PRUNED)
    monkeypatch.setattr(training, "RATES", (100.0,))
    result = onnxfold.fold(encoder(), **REFINED)
    assert not _record(result).kept
    assert str(_record(result)).startswith("refined: 30 steps on")
    assert ", undone: it came no closer, " in str(result.report)
    assert all(np.array_equal(values, _weights(result.model)[name]) for name, values in _weights(plain.model).items())


@pytest.mark.parametrize(("ceiling", "steps"), [(1e9, 8), (0.0, 0)])
def test_a_rate_that_does_harm_is_left_after_a_trial_or_once_the_loss_explodes(
    ceiling: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[float] = []
    step = RelativeSteps.step
    monkeypatch.setattr(RelativeSteps, "step", lambda self, rate: taken.append(rate) or step(self, rate))
    monkeypatch.setattr(training, "RATES", (0.3, 1e-3))
    monkeypatch.setattr(training, "_LOST", ceiling)
    record = _record(onnxfold.fold(encoder(), **PRUNED, refine="all", refine_steps=4))
    assert taken[:steps] == [0.3 * half_cosine(i, steps) for i in range(steps)]
    assert len(taken) == (2 * steps if steps else 0) + 4
    assert record.kept


def test_a_fold_that_changes_nothing_is_not_refined() -> None:
    result = onnxfold.fold(models.residual(0), sparsity=0.0, dtype="int8", refine="all", **FAST)
    assert _record(result).steps == 0
    assert "nothing is refined: held-out answers are the original's already" in result.report.notes
    assert str(_record(result)).startswith("not refined")


@pytest.mark.parametrize(
    ("rate", "end"), [(1e-2, "what they gave is kept"), (100.0, "the network is as it was before")]
)
def test_ctrl_c_keeps_what_helped(rate: float, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(text: str, done: int = 0, total: int = 0) -> None:
        if text == "refine" and done == 12:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "RATES", (rate,))
    result = onnxfold.fold(encoder(), **REFINED, progress=press)
    assert (_record(result).steps, _record(result).kept) == (12, rate < 1)
    assert any("interrupted after 12 of 30 steps" in note and end in note for note in result.report.notes)


def test_ctrl_c_while_more_text_is_written_keeps_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(refine_samples, "inputs_by_seed", stop)
    asked = {name: value for name, value in PRUNED.items() if name not in ("samples", "inputs")}
    result = onnxfold.fold(genai_decoder("packed"), **asked, refine="all")
    record = _record(result)
    assert (record.steps, record.kept) == (0, False)
    assert record.note == "the refinement was interrupted before its first step: the network is as it was"
    assert "not refined: held-out loss" in str(result.report)


def test_ctrl_c_elsewhere_ends_the_fold() -> None:
    def press(text: str, done: int = 0, total: int = 0) -> None:
        if text == "partition":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        onnxfold.fold(encoder(), **REFINED, progress=lambda text, done=0, total=0: press(text.split()[0], done, total))


def test_merges_and_quantised_models_are_refined_first() -> None:
    merged = onnxfold.merge([models.residual(0), models.residual(1)], refine="all", refine_steps=30, **FAST)
    assert _record(merged).loss_after < _record(merged).loss_before
    int8 = onnxfold.fold(models.residual(0), dtype="int8", **REFINED)
    assert _record(int8).kept
    assert int8.report.quantization is not None


def test_what_a_report_says() -> None:
    record = RefinementRecord("all", 1_234_000, 526, 0.0889, 0.0412, True, 95.2)
    assert str(record) == "refined: 526 steps on 1.2M weights, held-out loss 0.0889 -> 0.0412, kept, 95 s"
    assert "on 96 weights of norms" in str(RefinementRecord("norms", 96, 1, 1.0, 1.0, False, 0.1))
    result = onnxfold.fold(encoder(), **REFINED)
    line = str(_record(result))
    assert line in str(result.report)
    assert f"R{line[1:]}.".replace(">", "&gt;") in render_html(result.report)
    assert "--refine all --refine-steps 30" in command_line(result.report)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("fold --refine IN OUT", "all"),
        ("fold --refine norms IN OUT", "norms"),
        ("fold IN --refine all OUT", "all"),
        ("fold IN OUT --refine", "all"),
        ("fold IN OUT --refine --seed 3", "all"),
        ("fold IN --refine=norms OUT", "norms"),
        ("fold --refine -- IN OUT", "all"),
        ("fold --refine none IN OUT", "none"),
        ("fold --seed 3 -- IN OUT", "none"),
        ("merge --refine IN OUT OUT", "all"),
        ("merge IN IN OUT --refine norms", "norms"),
        ("sweep --refine IN OUT", ("all",)),
        ("sweep IN --refine none,norms OUT --refine-steps 5 --torch-device cpu", ("none", "norms")),
    ],
)
def test_the_option_may_stand_alone(words: str, asked: str) -> None:
    name, *arguments = words.split()
    flags = {"verbose": False, "debug": False}
    given = cli.commands[name].make_context(name, arguments, obj=flags, help_option_names=["-h", "--help"]).params
    paths = [*given["models"]] if "models" in given else [given["model"]]
    paths += [given["output"]] if name != "sweep" else []
    assert given["refine"] == asked
    assert [str(path) for path in paths] == [word for word in arguments if word in ("IN", "OUT")]


command = conftest.command


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--refine=weights", "error: refine 'weights' is unknown; use one of none, all, norms"),
        ("--refine weights", "unexpected extra argument (weights)"),
        ("--refine-steps 5", "error: refine_steps changes nothing without refine"),
        ("--refine --refine-steps 0", "error: refine_steps=0 must be at least 1"),
        ("--torch-device cpu", "error: torch_device changes nothing without refine"),
        ("--refine --torch-device tpu", "error: torch_device 'tpu' is unknown; use one of auto, cpu, cuda"),
        ("--refine --lossless", "error: lossless removes only what changes no output: give it without refine"),
        ("--refine --torch-device cuda", "error: torch_device 'cuda': torch has no CUDA device here"),
        ("--refine norms", "error: refine 'norms' trains scales and biases of norms, and the model has none"),
    ],
)
def test_error_lines(
    words: str, line: str, tmp_path: Path, command: conftest.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    onnx.save(models.mlp(0), str(tmp_path / "m.onnx"))
    done = command("fold", tmp_path / "m.onnx", tmp_path / "o.onnx", *words.split())
    assert done.code == 2
    assert line in done.line()
    assert not (tmp_path / "o.onnx").exists()


def test_what_cannot_be_refined_is_refused_before_anything_is_run() -> None:
    model = models.residual(0)
    extra = onnx.helper.make_node("NonZero", [model.graph.output[0].name], ["places"], name="the_places")
    model.graph.node.append(extra)
    model.graph.output.append(onnx.helper.make_tensor_value_info("places", onnx.TensorProto.INT64, None))
    with pytest.raises(UnsupportedModelError, match="the model cannot be refined: node 'the_places'"):
        onnxfold.fold(model, **REFINED)
    with pytest.raises(VerificationError, match="refine needs inputs, and the network cannot be run: it is broken"):
        refine.refine_fold(load(model), model, ChosenInputs(None, ("it is broken",)), FoldConfig(refine="all"), silent)


def test_masks_are_not_trained() -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2])
    rows = {"mask": np.float32([0.0, -1e9]), "bias": np.float32([1.0, 2.0])}
    nodes = [onnx.helper.make_node("Add", ["x", "mask"], ["h"]), onnx.helper.make_node("Add", ["h", "bias"], ["y"])]
    weights = [numpy_helper.from_array(row, name) for name, row in rows.items()]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2])
    view = load(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [value], [output], weights)))
    assert training.trained_names(view, "all") == ["bias"]


def test_a_fold_of_a_sweep_is_refined() -> None:
    job = Job("", Goal("sparsity", 0.5), "prune-l1", 0, {}, {"refine": "all", "allocation": "uniform"})
    assert job.config({}).refine == "all"
    assert job.needs_inputs


def test_a_fold_on_inverted_images_is_refined_on_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[int, int]] = []

    def train(view: Any, original: Any, inputs: Any, config: Any, samples: int) -> None:
        shown.append((inputs.samples, len(np.unique(np.concatenate([b["x"] for b in inputs.batches]), axis=0))))
        raise VerificationError("enough")

    monkeypatch.setattr(training, "Training", train)
    asked: dict[str, Any] = {"refine": "all", "verify": False, "cache": None, "input_steps": [2]}
    with pytest.raises(VerificationError, match="enough"):
        onnxfold.fold(models.residual(0), 0.4, **asked)
    assert shown == [(512, 512)]


@pytest.mark.parametrize(("tokens", "written"), [(1_000, [0, 1]), (10_000, [0, 1, 2]), (1 << 30, [0, 1, 2, 3, 4])])
def test_a_language_model_writes_more_text_for_its_refinement(
    tokens: int, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.zeros((32, 128), np.int64)
    texts = ModelInputs([{"input_ids": ids}], "self-written text", "")

    def write(model: Any, config: FoldConfig, seeds: range, progress: Any, sampling: Sampling) -> list[ChosenInputs]:
        assert (config.refine, config.torch_device, sampling) == (FoldConfig().refine, "auto", ANCESTRAL)
        return [ChosenInputs(replace(texts, batches=[{"input_ids": ids + seed}])) for seed in seeds]

    monkeypatch.setattr(refine_samples, "inputs_by_seed", write)
    monkeypatch.setattr(refine_samples, "_TEXTS", 4)
    config = FoldConfig(sparsity=0.2, refine="all")
    shown = refine_samples.with_more_samples("model.onnx", texts, tokens, config, silent)
    assert [int(batch["input_ids"][0, 0]) for batch in shown.batches] == written
    given = replace(texts, kind="data")
    assert refine_samples.with_more_samples("model.onnx", given, tokens, config, silent) is given
    assert refine_samples.with_more_samples("model.onnx", texts, tokens, replace(config, samples=32), silent) is texts


def test_memory_is_counted_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refine, "activation_bytes", lambda *_: 1 << 60)
    with pytest.raises(MemoryLimitError, match=r"a step of a refinement needs .* --max-memory"):
        onnxfold.fold(encoder(), **REFINED)
    sizes: list[int] = []
    monkeypatch.setattr(refine, "activation_bytes", lambda *_: refine.memory.limit() // 5)
    monkeypatch.setattr(training, "Training", lambda *asked: sizes.append(asked[-1]) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        onnxfold.fold(models.residual(0), **REFINED)
    assert sizes == [5]


def test_steps_of_a_language_model_are_counted_by_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else counts: what an attention of onnxruntime costs is not known, and a decoder trained for hours."""
    asked: list[int] = []

    def stop(text: str, done: int, total: int) -> None:
        if text == training.STAGE:
            asked.append(total)
            raise KeyboardInterrupt

    model = genai_decoder("packed")
    folded = load(onnxfold.fold(model, **PRUNED).model)
    per_step = 4 * count_token_macs(folded) * refine.TOKENS_PER_STEP  # forward, twice backward, and the original
    monkeypatch.setattr(refine, "_COST_OF_TOKENS", 300.5 * per_step)
    result = onnxfold.fold(model, **PRUNED, refine="all", progress=stop)
    assert asked == [300]
    assert "after 0 of 300 steps" in _record(result).note


def test_bytes_of_activations() -> None:
    view = load(models.residual(0))
    inputs = ModelInputs([{"x": np.zeros((4, 3, 8, 8), np.float32)}], "data", "")
    elements = sum(int(np.prod(view.shape(name)[1:])) for node in view.nodes for name in node.output)  # type: ignore[index]
    assert refine.activation_bytes(view, inputs) == 2 * 4 * elements


@pytest.mark.parametrize("has_norms", [True, False])
def test_networks_with_statistics_of_data_are_not_refined_on_dead_leaves(has_norms: bool) -> None:
    model = models.residual(0) if has_norms else models.chain_conv(0, bn=False)
    options = REFINED | {"inputs": "dead-leaves"}
    result = onnxfold.fold(model, **options)
    record = _record(result)
    if has_norms:
        assert record.steps == 0
        assert "BatchNormalizations see other statistics than on data" in record.note
        plain = onnxfold.fold(model, **{name: value for name, value in options.items() if "refine" not in name})
        np.testing.assert_equal(_weights(result.model), _weights(plain.model))
    else:
        assert record.steps == 30
