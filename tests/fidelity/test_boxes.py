"""Final detections of detectors in the layouts of the field, and boxes beside scores."""

import numpy as np
import onnx.parser
import pytest

from onnxfold.fidelity.answer_measures import Detections
from onnxfold.fidelity.answers import AnswerKind
from onnxfold.fidelity.boxes import find_list
from onnxfold.fidelity.estimate import verdict_on
from onnxfold.fidelity.measures import FidelityMeter, fidelity
from onnxfold.graph.files.load import load
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.report import FidelityReport

ROWS = 20


def corners(shift: float = 0.0) -> Array:
    left = 50.0 * np.arange(ROWS)[:, None] + shift
    return np.concatenate([left, left, left + 40.0, left + 30.0], axis=1)


def columns() -> tuple[Array, Array, Array]:
    """Scores, classes and samples, one column each."""
    rows = np.arange(ROWS)[:, None]
    return np.linspace(0.95, 0.4, ROWS)[:, None], rows % 3, rows // 10


def suppressing() -> GraphView:
    """A network whose boxes are final."""
    text = """<ir_version: 8, opset_import: ["" : 13]> final (float[1, 48, 4] boxes, float[1, 2, 48] scores)
    => (int64[n, 3] chosen) { chosen = NonMaxSuppression(boxes, scores) }"""
    return load(onnx.parser.parse_model(text))


def compared(before: list[Array], after: list[Array], samples: int = 2) -> FidelityReport:
    names = ["boxes", "scores", "labels", "count"][: len(before)]
    return fidelity(names, before, after, inputs="photographs", view=suppressing(), samples=samples)


LAYOUTS = {
    "YOLOv10": lambda x: [np.concatenate([x, *columns()[:2]], axis=1).reshape(2, 10, 6)],
    "YOLOv7": lambda x: [np.concatenate([columns()[2], x, columns()[1], columns()[0]], axis=1)],
    "PaddleDetection": lambda x: [np.concatenate([columns()[1], columns()[0], x], axis=1)],
    "SSD": lambda x: [np.concatenate([*columns()[::-1], x], axis=1).reshape(1, 1, ROWS, 7)],
    "torchvision": lambda x: [x, columns()[1][:, 0], columns()[0][:, 0]],
    "TensorRT": lambda x: [
        x.reshape(2, 10, 4), *(c.reshape(2, 10) for c in columns()[:2]), np.full((2, 1), 10, np.int32),
    ],
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_final_detections_are_matched_in_any_order_and_number(layout: str) -> None:
    table = LAYOUTS[layout]
    before = table(corners())
    same = compared(before, before)
    assert [(o.kind, o.boxes_kept, o.relative_error) for o in same.outputs] == [("listed detections", 1.0, 0.0)]
    half = corners()
    half[:10] += 25.0
    report = compared(before, table(half))
    assert report.outputs[0].boxes_kept == 0.5
    assert report.outputs[0].relative_error > 0.1
    assert "50% of the original's detections" in verdict_on(report).kept


def test_rows_that_went_are_lost_detections() -> None:
    (before,) = LAYOUTS["PaddleDetection"](corners())
    report = compared([before], [before[::-2]], samples=1)
    assert report.outputs[0].boxes_kept == pytest.approx(2 / 3)
    assert not report.notes


def test_samples_without_detections_come_first_and_do_not_disturb() -> None:
    (before,) = LAYOUTS["PaddleDetection"](corners())
    meter = FidelityMeter(["boxes", "count"], suppressing())
    meter.add([before[:0], np.int32([0])], [before[:3], np.int32([3])], samples=1)
    meter.add([before, np.int32([ROWS])], [before, np.int32([ROWS])], samples=1)
    (output,) = meter.report("photographs").outputs
    assert output.boxes_kept == 1.0
    assert not meter.notes


def test_samples_without_detections_come_last_and_do_not_disturb() -> None:
    (before,) = LAYOUTS["PaddleDetection"](corners())
    meter = FidelityMeter(["boxes", "count"], suppressing())
    for rows in (before, before[:0]):
        meter.add([rows, np.int32([len(rows)])], [rows, np.int32([len(rows)])], samples=1)
    (output,) = meter.report("photographs").outputs
    assert output.boxes_kept == 1.0
    assert output.relative_error == 0.0


def test_nothing_in_a_list_is_not_known() -> None:
    before = LAYOUTS["YOLOv10"](corners())
    before[0][..., 4] /= 4.0
    verdict = verdict_on(compared(before, before))
    assert verdict.state == "not known"
    assert "hardly anything" in verdict.kept


@pytest.mark.parametrize(
    "table",
    [
        np.random.default_rng(0).uniform(0, 1, (2, 100, 6)),  # a score of objects and of one class
        np.concatenate([corners(), np.full((ROWS, 2), 2.0)], axis=1),
        np.concatenate([corners()[:, ::-1], *columns()[:2]], axis=1),
        np.zeros((0, 6)),
        np.zeros((2, 10, 6)),
    ],
)
def test_other_tables_list_nothing(table: Array) -> None:
    assert find_list([table], [0]) is None


def test_logits_beside_centres_are_boxes() -> None:
    centres = np.stack(np.meshgrid(np.linspace(0.1, 0.9, 5), np.linspace(0.1, 0.9, 4)), -1).reshape(1, ROWS, 2)
    boxes = np.concatenate([centres, np.full((1, ROWS, 2), 0.1)], axis=-1)
    logits = np.full((1, ROWS, 4), -5.0)
    logits[0, 0, 3] = 4.0
    logits[0, 1:, 1] = 3.0
    meter, half = Detections(), Detections()
    meter.add(logits, logits, (boxes, boxes))
    other = boxes.copy()
    other[:, ::2, 0] += 0.09
    half.add(logits, logits, (boxes, other))
    assert meter.values()["boxes_kept"] == 1.0
    assert half.values()["boxes_kept"] == 0.5
    assert AnswerKind.LISTED == "listed detections"
