"""Samples and steps follow from counted costs; the clock decides where a limit is given."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from itertools import count
from typing import Any

import pytest
from numpy.typing import NDArray

import onnxfold
from onnxfold.graph.files.load import load
from onnxfold.graph.view import GraphView
from onnxfold.inputs import input_plan
from onnxfold.inputs.images.synthetic import sample_cost
from onnxfold.inputs.inversion import invert
from onnxfold.inputs.inversion.deep_inversion import Schedule
from testing.models import chain_conv

Array = NDArray[Any]


def _view(bn: bool = True) -> GraphView:
    return load(chain_conv(0, bn=bn))


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (1e6, (512, 40)),
        (3.4e8, (148, 40)),
        (4.5e8, (128, 35)),
        (6e8, (112, 30)),
        (9e8, (75, 30)),
        (2e9, (64, 30)),
        (9e9, (64, 7)),
    ],
)
def test_samples_and_steps_follow_from_counted_costs(cost: float, expected: tuple[int, int]) -> None:
    count, settings, _ = input_plan.planned_inversion(512, cost, input_plan.InputRequest(), has_statistics=True)
    assert (count, settings.steps.statistics) == expected


def test_what_costs_more_than_a_minute_takes_fewer_steps() -> None:
    """Of what the user asks for: without a limit of time, the cost alone is counted."""
    minute = input_plan._COUNTED_SECONDS * input_plan._INVERTED_PER_SECOND / 64
    for steps in (30, 12, 2):
        plan = input_plan.planned_inversion(512, minute / steps, input_plan.InputRequest(), has_statistics=True)
        assert (plan[0], plan[1].steps.statistics) == (64, steps)
        assert bool(plan[2]) == (steps < 30)
    assert plan[2][0].endswith("allow more with --input-seconds 900")
    given = input_plan.InputRequest(seconds=900.0)
    assert input_plan.planned_inversion(512, minute / 2, given, has_statistics=True)[1].steps.statistics == 30
    assert (
        input_plan.planned_inversion(512, 1e14, input_plan.InputRequest(), has_statistics=True)[1].steps.statistics == 2
    )


def test_a_network_of_unknown_cost_is_taken_for_a_dear_one() -> None:
    for request, samples in ((input_plan.InputRequest(), 64), (input_plan.InputRequest(samples=100), 100)):
        plan = input_plan.planned_inversion(100, 0.0, request, has_statistics=True)
        assert (plan[0], plan[1].steps.statistics, plan[2]) == (samples, 30, ())


def test_free_dimensions_have_the_cost_of_the_size_that_they_get() -> None:
    free = chain_conv(0)
    for dim in free.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_param = "size"
    sized = chain_conv(0)
    for dim in sized.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = 64
    del free.graph.value_info[:], sized.graph.value_info[:]
    assert sample_cost(load(free)) == sample_cost(load(sized)) > sample_cost(load(chain_conv(0)))


def _inverted_fold() -> tuple[bytes, tuple[int, ...]]:
    result = onnxfold.fold(chain_conv(0), 0.3, inputs="deep-inversion", samples=4, verify=False, cache=None)
    assert result.report.inputs is not None
    return result.model.SerializeToString(), tuple(result.report.inputs.steps)


def test_no_clock_decides_unless_a_limit_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    alone = _inverted_fold()
    assert alone[1] == (40,)
    ticks = count(step=100)  # hours in all
    monkeypatch.setattr(invert, "Schedule", partial(Schedule, clock=lambda: float(next(ticks))))
    assert _inverted_fold() == alone


@pytest.mark.long
def test_a_busy_machine_gives_the_same_bytes() -> None:
    pytest.importorskip("torch")
    alone = _inverted_fold()
    spin = "print(flush=True)\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-I", "-c", spin], stdout=subprocess.PIPE) for _ in range(4)]
    try:
        for process in busy:
            assert process.stdout is not None
            process.stdout.readline()  # it spins
        assert _inverted_fold() == alone
    finally:
        for process in busy:
            process.kill()
            process.communicate()


def test_an_inversion_that_the_clock_ends_can_be_repeated() -> None:
    pytest.importorskip("torch")
    cut = onnxfold.fold(chain_conv(0), channel_ratio=0.5, inputs="deep-inversion", samples=4, input_seconds=1e-6)
    assert cut.report.inputs is not None
    assert cut.report.inputs.steps == (2,)
    assert cut.report.inputs.samples == 1
    (note,) = [n for n in cut.report.notes if "ended the inversion" in n]
    assert note.endswith("--input-steps 2 makes them again")
    again = onnxfold.fold(
        chain_conv(0), channel_ratio=0.5, inputs="deep-inversion", samples=4, input_seconds=1e-6, input_steps=(2,)
    )
    assert not any("ended the inversion" in n for n in again.report.notes)
    assert again.model.SerializeToString() == cut.model.SerializeToString()
