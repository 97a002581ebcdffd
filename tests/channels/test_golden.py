"""What `inspect` finds in three small networks, word by word.

Run with ``ONNXFOLD_UPDATE_GOLDEN=1`` to rewrite the files, then read the difference.
"""

import os
from pathlib import Path

import pytest

from testing.models import ALL_MODELS
from tests.channels.describe import golden

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("name", ["flatten_conv", "grouped_conv", "two_outputs"])
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    text = golden(ALL_MODELS[name](0))
    if os.environ.get("ONNXFOLD_UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert path.read_text() == text
