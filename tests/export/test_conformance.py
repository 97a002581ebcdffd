"""ONNX's own backend node tests of every operator that the writer claims."""

from pathlib import Path

import pytest

from testing.node_tests import cases, operators, run_case

pytest.importorskip("ai_edge_litert")

#: Share of an operator's tests that may be refused.
_REFUSED = 0.2


@pytest.mark.parametrize("operator", operators())
def test_outputs_are_those_expected(operator: str, tmp_path: Path) -> None:
    found = [run_case(operator, case, tmp_path / "node.tflite") for case in cases()[operator]]
    inside = [o for o in found if not o.outside]
    assert inside, "an operator without a test must not be claimed"
    assert not [f"{o.test}: {o.differs}" for o in found if o.differs]
    refused = [f"{o.test}: {o.refused}" for o in inside if o.refused]
    assert len(refused) <= _REFUSED * len(inside), refused
    assert any(o.passed for o in found)
