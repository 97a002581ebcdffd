"""Facts about kinds of inputs are in their table alone."""

import re
from pathlib import Path

import onnxfold
from onnxfold.config.values import INPUTS
from onnxfold.inputs.sample_kinds import SAMPLE_KINDS

_ROOT = Path(onnxfold.__file__).parent
_NAMES = "|".join(SAMPLE_KINDS)


def test_every_kind_that_may_be_requested_has_a_row() -> None:
    assert {*INPUTS} - {"auto"} <= {*SAMPLE_KINDS}


def test_nothing_compares_the_kind_of_inputs_with_a_name() -> None:
    compared = re.compile(rf'inputs\.kind (==|!=|in|not in) |"({_NAMES})" ==')
    guilty = [str(path) for path in _ROOT.rglob("*.py") if compared.search(path.read_text(encoding="utf-8"))]
    assert guilty == []
