"""What a model with open lengths costs: multiply-accumulates per token."""

import numpy as np

from onnxfold.inspection import inspect_model
from testing.language_models import decoder
from testing.models import chain_conv
from testing.quick import quick_fold


def test_language_models_with_open_lengths_count_per_token() -> None:
    """Matrices that tokens are multiplied by; tables that they are looked up in cost nothing."""
    model = decoder()
    found = inspect_model(model)
    assert found.size is not None
    assert (found.size.macs_per, found.size.macs_title) == ("token", "MACs per token")
    skipped = ("embedding", "positions")
    matrices = [t for t in model.graph.initializer if len(t.dims) > 1 and t.name not in skipped]
    assert found.size.macs == sum(int(np.prod(t.dims)) for t in matrices)
    report = quick_fold(model, 0.1, method="fold-naive", allocation="uniform", verify=False).report
    assert report.before.macs == found.size.macs
    assert report.after.macs is not None
    assert report.after.macs < found.size.macs
    assert report.before.macs - report.after.macs <= report.before.parameters - report.after.parameters
    assert found.to_dict()["macs_per"] == "token"


def test_other_models_count_per_sample() -> None:
    assert inspect_model(chain_conv(0)).to_dict()["macs_per"] == "sample"
