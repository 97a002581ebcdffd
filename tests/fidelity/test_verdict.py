"""Kinds of answers, their measures, and the verdict that opens a report."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from click.testing import CliRunner

from onnxfold import compare
from onnxfold.cli import cli
from onnxfold.errors import BudgetError
from onnxfold.fidelity.answer_measures import Agreement, Dense, Detections, Embedding, Numbered, Tokens
from onnxfold.fidelity.answers import AnswerKind, answer_kinds
from onnxfold.fidelity.estimate import verdict_on
from onnxfold.fidelity.measures import FidelityMeter, fidelity
from onnxfold.folding.search.criteria import require_fidelity
from onnxfold.graph.files.load import load
from onnxfold.report import Fidelity, FidelityReport
from testing import models
from testing.graph_builder import GraphBuilder

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ("", AnswerKind.CLASSES),
        ("Softmax", AnswerKind.CLASSES),
        ("Tanh", AnswerKind.REGRESSION),
        ("Relu", AnswerKind.EMBEDDING),
    ],
)
def test_the_end_of_a_network_says_what_it_answers(end: str, kind: AnswerKind) -> None:
    model = models.mlp(0)
    output = model.graph.output[0].name
    if end:
        node = next(n for n in model.graph.node if output in n.output)
        node.output[0] = "before"
        model.graph.node.append(onnx.helper.make_node(end, ["before"], [output]))
    assert answer_kinds(load(model), {output: (4, 10)}, 4) == {output: kind}


def test_measures_tell_equal_from_foreign_answers() -> None:
    maps, vectors, logits = RNG.normal(size=(2, 3, 8, 8)), RNG.normal(size=(32, 8)), RNG.normal(size=(2, 6, 9))
    for make, x, names in (
        (Dense, maps, ("pixel_agreement", "mean_iou")), (Embedding, vectors, ("neighbours_kept",)),
        (Tokens, logits, ("top1_agreement",)),
    ):  # fmt: skip
        same, other = make(), make()
        same.add(x, x)
        other.add(x, RNG.permutation(x.ravel()).reshape(x.shape))
        for name in names:
            assert same.values()[name] == pytest.approx(1.0)
            assert other.values()[name] < 0.7
    assert other.values()["kl_divergence"] > 0.1 > same.values()["kl_divergence"]


def test_boxes_of_a_known_layout_are_matched() -> None:
    x = np.zeros((1, 6, 100))
    x[:, :2] = 40.0 * np.arange(100)
    x[:, 2:4], x[:, 4, :20] = 30.0, 0.9
    y = x.copy()
    y[:, 0, :10] += 25.0
    meter = Detections()
    meter.add(x, y)
    assert meter.values()["boxes_kept"] == 0.5
    assert meter.values()["worst_channels"][0][0] == 0


@pytest.mark.parametrize(("share", "state"), [(0.96, "kept"), (0.5, "damaged"), (0.03, "destroyed")])
def test_a_verdict_says_what_is_kept(share: float, state: str) -> None:
    verdict = verdict_on(FidelityReport([Fidelity("y", 0.1, share, kind="classes")], 256, "held-out dead leaves"))
    assert verdict.state == state
    assert f"{share:.0%} of the original's answers" in str(verdict)
    assert str(verdict).endswith("measured on 256 samples of held-out dead leaves")


def test_a_verdict_on_generated_inputs_says_that_no_real_ones_were_seen(tmp_path: Path) -> None:
    model = models.mlp(0)
    verdict = compare(model, model).verdict
    assert str(verdict).endswith("(real inputs were not seen)")
    name, shape = model.graph.input[0].name, (8, model.graph.input[0].type.tensor_type.shape.dim[1].dim_value)
    given = compare(model, model, {name: RNG.normal(size=shape).astype(np.float32)}).verdict
    assert given is not None
    assert "not seen" not in str(given)


def test_a_doubt_takes_the_word_of_answers_that_are_kept() -> None:
    """Crops of two photographs name few classes: 92 % of a LeNet's answers on them were kept, and 16 % on its data."""
    few = "the original's answers on given samples have 20% of the variety that evenly drawn classes have"
    report = FidelityReport([Fidelity("y", 0.1, 0.92, kind="classes")], 50, "held-out samples")
    verdict = verdict_on(report, doubt=few)
    assert (verdict.state, verdict.output) == ("not known", "y")
    assert str(verdict) == (
        "verdict: not known: it keeps 92% of the original's answers (class scores) on 50 samples of held-out samples, "
        f"but {few}"
    )
    bad = FidelityReport([Fidelity("y", 0.9, 0.03, kind="classes")], 50, "held-out samples")
    assert verdict_on(bad, doubt=few).is_destroyed


def test_the_same_values_after_a_lossy_fold_tell_nothing_of_generated_inputs() -> None:
    """A speech detector's units were never active on noise: half of them went, and no value changed."""
    report = FidelityReport([Fidelity("y", 0.0, snr_db=math.inf)], 256, "1/f noise", is_generated=True)
    assert verdict_on(report).state == "kept"
    lossy = verdict_on(report, is_lossy=True)
    assert lossy.state == "not known"
    assert "nothing that was folded reaches an output" in str(lossy)
    assert verdict_on(replace(report, is_generated=False), is_lossy=True).state == "kept"
    hardly = replace(report, outputs=[Fidelity("y", 0.8, snr_db=1.9)])
    assert verdict_on(hardly, is_lossy=True).is_destroyed


def test_one_number_per_sample_is_no_embedding() -> None:
    builder = GraphBuilder("speech", 0, (1, 64))
    builder.output(builder.node("Relu", [builder.node("ReduceMean", ["x"], (1, 1), axes=[2])], (1, 1)))
    name = builder.build().graph.output[0].name
    assert answer_kinds(load(builder.build()), {name: (4, 1, 1)}, 4) == {name: AnswerKind.REGRESSION}


def test_scores_of_anchors_beside_boxes_are_detections() -> None:
    """A detector of faces kept '1 % of its answers': the anchor with the largest score was its class."""
    builder = GraphBuilder("faces", 0, (3, 8, 8))
    for name, columns in (("scores", 1), ("boxes", 16)):
        target = builder.constant(f"{name}_shape", np.array([0, 64, columns]))
        builder.output(builder.node("Reshape", [builder.conv("x", columns, 1), target], (64, columns)), name)
    kinds = answer_kinds(load(builder.build()), {"scores": (4, 64, 1), "boxes": (4, 64, 16)}, 4)
    assert set(kinds.values()) == {AnswerKind.DETECTIONS}


def test_numbers_along_a_recording_are_no_classes() -> None:
    """The scores of a detector of speech, one per frame, were classes of which the largest counts."""
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["scores"], strides=[2])]
    x, y = (onnx.helper.make_tensor_value_info(n, 1, ["n", 1, "t"]) for n in ("x", "scores"))
    weight = onnx.numpy_helper.from_array(np.ones((1, 1, 4), np.float32), "w")
    view = load(onnx.helper.make_model(onnx.helper.make_graph(nodes, "speech", [x], [y], [weight])))
    assert answer_kinds(view, {"scores": (4, 1, 31)}, 4) == {"scores": AnswerKind.REGRESSION}
    view.assume({"x": (4, 1, 64)})
    assert answer_kinds(view, {"scores": (4, 1, 31)}, 4) == {"scores": AnswerKind.REGRESSION}
    view.fix_input_shapes({"x": (None, None, 64)})
    view.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 31
    assert answer_kinds(view, {"scores": (4, 1, 31)}, 4) == {"scores": AnswerKind.CLASSES}


def test_states_of_past_frames_are_no_images() -> None:
    """Scores of sounds beside four states of rank 4 were boxes."""
    text = """<ir_version: 8, opset_import: ["" : 13]>
    vad (float[1, t, 80] speech, float[1, 80, 19, 1] state) => (float[1, t, 80] scores, float[1, 80, 19, 1] next)
    { scores = Softmax(speech) next = Relu(state) }"""
    view = load(onnx.parser.parse_model(text))
    kinds = answer_kinds(view, {"scores": (1, 100, 80), "next": (1, 80, 19, 1)}, 1)
    assert kinds["scores"] == AnswerKind.TOKENS


def test_one_answer_everywhere_tells_nothing_of_others() -> None:
    """A text detector finds no text in dead leaves: all of its positions were kept, whatever was folded."""
    maps, measure = np.zeros((4, 1, 16, 16)), Dense()
    measure.add(maps, maps)
    same = [Fidelity("y", 0.0, kind="dense", **measure.values())]
    outputs = [replace(same[0], relative_error=1e-5)]
    assert verdict_on(FidelityReport(same, 4, "dead leaves", is_generated=True)).state == "kept"
    assert verdict_on(FidelityReport(outputs, 4, "dead leaves", is_generated=True)).state == "not known"
    assert verdict_on(FidelityReport(outputs, 4, "given data")).state == "kept"
    maps[:, :, :2] = 1.0
    measure.add(maps, maps)
    outputs = [Fidelity("y", 1e-5, kind="dense", **measure.values())]
    assert verdict_on(FidelityReport(outputs, 8, "dead leaves", is_generated=True)).state == "kept"


def test_values_that_never_change_tell_nothing() -> None:
    """The pitch of noise is no number, and its confidence 0: a tracker of which nothing was left kept all of these."""
    still, moving = np.zeros((8, 1)), np.linspace(-1.0, 1.0, 8)[:, None]
    for reference, outputs, words in (
        ([still], [still], "not known: the original's values are the same on all 8 samples"),
        ([np.full((8, 1), np.nan), still], [still, still], "not known: the original's values are the same on all 8"),
        ([still, moving], [still, 1.3 * moving], "damaged: keeps only the original's values at 11.0 dB"),
        ([still], [still + 4.0], "destroyed"),
        ([still[:1]], [still[:1]], "keeps all of the original's values"),
    ):
        report = fidelity(["y", "z"][: len(reference)], reference, outputs, inputs="held-out noise")
        assert words in str(verdict_on(replace(report, is_generated=True)))


def test_answers_that_agree_as_often_as_by_chance_are_destroyed() -> None:
    """Of five classes 39 % were kept, on photographs 35 %, and the most frequent class was 60 %."""
    random = np.random.default_rng(3)
    scores, others = (np.eye(3)[random.integers(0, 3, 300)] + 0.1 * random.normal(size=(300, 3)) for _ in range(2))
    half = np.where(np.arange(300)[:, None] % 2, scores, others)
    for outputs, words in (
        (others, "destroyed: keeps only"), (half, "damaged: keeps only"), (scores, "keeps 100%"),
    ):  # fmt: skip
        measure = Agreement()
        measure.add(scores, outputs)
        values = measure.values()
        assert values["chance_agreement"] == pytest.approx(1 / 3, abs=0.02)
        verdict = verdict_on(FidelityReport([Fidelity("y", 0.9, kind="classes", **values)], 300, "given data"))
        assert f"verdict: {words}" in str(verdict)
        assert ("as many as by chance" in str(verdict)) == (outputs is others)


def test_numbers_of_classes_are_compared_one_by_one() -> None:
    """A captcha reader gives its answers as numbers: their ratio of signal to noise was no measure of anything."""
    builder = GraphBuilder("reader", 0, (3, 8, 8))
    numbers = builder.node("ArgMax", [builder.conv("x", 5, 1)], (1, 8, 8), axis=1)
    builder.output(builder.node("Cast", [numbers], (1, 8, 8), to=onnx.TensorProto.FLOAT))
    view = load(builder.build())
    name = view.output_names[0]
    assert answer_kinds(view, {name: (4, 1, 8, 8)}, 4) == {name: AnswerKind.NUMBERED}
    line, other = np.random.default_rng(2).integers(0, 9, (2, 40, 6))
    line[:, :4] = 0  # blanks
    halved = np.where(np.arange(40)[:, None] % 2, line, other % 3 + 11)
    for before, after, words in (
        (line, line, "keeps 100% of the original's answers other than its most frequent one"),
        (line, np.where(line, halved, 0), "damaged: keeps only 5"),
        (line[:, 5], other[:, 5], "destroyed: keeps only"),
        (line[:, 5], np.where(np.arange(40) % 10, line[:, 5], 9), "keeps 90% of the original's answers (numbers"),
        (np.tri(8, dtype=int)[None], np.tri(8, 8, -1, dtype=int)[None], "a mean IoU of 0.78"),
    ):
        measure = Numbered()
        measure.add(before, after)
        outputs = [Fidelity("y", 0.5, kind="numbered", **measure.values())]
        assert words in str(verdict_on(FidelityReport(outputs, 40, "given data")))


def test_values_are_judged_by_how_they_vary() -> None:
    """The scores of a word detector lie about .55: errors of half of their variation had 24.6 dB, and were kept."""
    varied = np.linspace(-1.7, 1.7, 64)[:, None]
    for reference, outputs, words, on_data in (
        (varied + 5.0, 0.6 * varied + 5.0, "damaged: keeps only the original's values at 8.0 dB", "damaged"),
        (varied + 20.0, np.full_like(varied, 20.0), "not known: the original's values hardly vary on 64", "destroyed"),
        (varied + 2.0, np.full_like(varied, 2.0), "destroyed", "destroyed"),
    ):
        report = fidelity(["y"], [reference], [outputs], inputs="held-out noise")
        assert words in str(verdict_on(replace(report, is_generated=True)))
        assert verdict_on(report).state == on_data
        halves = FidelityMeter(["y"])
        for half in (slice(24), slice(24, None)):
            halves.add([reference[half]], [outputs[half]])
        assert halves.report("").outputs[0].snr_db == pytest.approx(report.outputs[0].snr_db)


def test_a_reader_of_text_is_judged_by_the_characters_between_blanks() -> None:
    """Of a reader's answers on dead leaves 99 % were kept, the blanks, and of its characters 14 %."""
    scores = np.zeros((40, 25, 11))
    scores[..., 0] = 1.0
    scores[:, 3, 5] = 2.0
    lost = scores.copy()
    lost[8:, 3, 5] = 0.0
    measure = Tokens()
    measure.add(scores, lost)
    values = measure.values()
    assert values["top1_agreement"] > 0.96
    assert values["rare_agreement"] == pytest.approx(0.2)
    outputs = [Fidelity("y", 0.1, kind="tokens", **values)]
    assert verdict_on(FidelityReport(outputs, 40, "given data")).state == "damaged"


def test_scores_of_characters_along_a_line_are_no_boxes() -> None:
    builder = GraphBuilder("reader", 0, (3, 32, 320))
    pooled = builder.node("AveragePool", ["x"], (3, 1, 80), kernel_shape=[32, 4], strides=[32, 4])
    line = builder.node("Squeeze", [pooled, builder.constant("axes", np.array([2]))], (3, 80))
    weight = builder.constant("weight", builder.normal(3, 97))
    turned = builder.node("Transpose", [line], (80, 3), perm=[0, 2, 1])
    scores = builder.node("Softmax", [builder.node("MatMul", [turned, weight], (80, 97))], (80, 97), axis=-1)
    builder.output(scores)
    name = builder.build().graph.output[0].name
    assert answer_kinds(load(builder.build()), {name: (4, 80, 97)}, 4) == {name: AnswerKind.TOKENS}


@pytest.mark.parametrize(("of_sound", "kind"), [(True, AnswerKind.REGRESSION), (False, AnswerKind.DENSE)])
def test_vectors_of_pieces_of_a_recording_are_no_map_of_classes(of_sound: bool, kind: AnswerKind) -> None:
    builder = GraphBuilder("frames", 0, (800,) if of_sound else (1, 40, 20))
    target = builder.constant("target", np.array([-1, 1, 40, 20]))
    pieces = builder.node("Reshape", ["x", target], (1, 40, 20)) if of_sound else "x"
    weight = builder.constant("weight", builder.normal(6, 1, 1, 5))
    builder.output(builder.node("Conv", [pieces, weight], (6, 40, 16)))
    name = builder.build().graph.output[0].name
    assert answer_kinds(load(builder.build()), {name: (4, 6, 40, 16)}, 4) == {name: kind}


def test_landmarks_beside_a_score_are_no_detections() -> None:
    """Of a face mesh both come from convolutions that read the whole of the last map."""
    builder = GraphBuilder("mesh", 0, (3, 12, 12))
    for numbers in (1404, 1):
        weight = builder.constant(f"w{numbers}", builder.normal(numbers, 3, 12, 12))
        whole = builder.node("Conv", ["x", weight], (numbers, 1, 1), kernel_shape=[12, 12])
        builder.output(builder.node("Transpose", [whole], (1, 1, numbers), perm=[0, 2, 3, 1]), f"y{numbers}")
    kinds = answer_kinds(load(builder.build()), {"y1404": (4, 1, 1, 1404), "y1": (4, 1, 1, 1)}, 4)
    assert set(kinds.values()) == {AnswerKind.REGRESSION}


def test_the_output_that_keeps_least_speaks_for_all() -> None:
    outputs = [Fidelity("scores", 0.0, snr_db=math.inf), Fidelity("points", 0.01, snr_db=36.0)]
    verdict = verdict_on(FidelityReport(outputs, 9, "given data"))
    assert (verdict.state, verdict.output) == ("kept", "points")


@pytest.mark.parametrize(("noise", "state"), [(3.0, "destroyed"), (9.7, "damaged"), (25.0, "kept")])
def test_a_detector_is_destroyed_long_before_its_channels_are_noise(noise: float, state: str) -> None:
    """Of a YOLO, 3 dB on dead leaves left 3 % of the cells that it names in photographs, 9.7 dB 52 %."""
    found = Fidelity("y", 0.5, kind="detections", channel_snr_db=noise)
    assert verdict_on(FidelityReport([found], 256, "held-out dead leaves")).state == state


def test_a_fidelity_that_further_samples_contradict_is_refused() -> None:
    report = FidelityReport([Fidelity("y", 0.1, 0.988, (0.966, 0.996), 256)], 256, "held-out dead leaves")
    require_fidelity(0.99, report)
    with pytest.raises(BudgetError, match=r"0.9999 is not kept: output 'y' agrees on 98.8%"):
        require_fidelity(0.9999, report)


def test_a_destroyed_result_is_written_only_by_force(tmp_path: Path) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(models.mlp(0), str(source))
    words = ["fold", str(source), str(out), "--sparsity", "0.9", "--method", "prune-l2", "--repair", "none"]
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, BudgetError | SystemExit)
    assert done.exit_code == 1
    assert not out.exists()
    done = CliRunner().invoke(cli, [*words, "--force", "--report", str(tmp_path / "r.json")])
    assert done.exit_code == 0
    assert done.stdout.startswith("verdict: destroyed")
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["schema"], report["verdict"]["state"]) == (1, "destroyed")
