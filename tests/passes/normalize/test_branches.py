"""An If whose condition is decided by sizes that the model knows is replaced by the branch that it takes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.passes.normalize.pipelines import NORMALIZE
from testing.models import run
from testing.quick import quick_fold

RNG = np.random.default_rng(0)
#: A convolution behind a choice between one channel and several, as exporters write it, with a choice in the branch.
_TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[n, {channels}, t] x) => (float[n, 4, u] y) <int64 one = {{1}}, int64 axis = {{{axis}}}, {weights}> {{
  normal = InstanceNormalization(x, scale, shift)
  shape = Shape<start = 0>(normal)
  count = Gather(shape, axis)
  single = Equal(count, one)
  chosen = If(single) <
    then_branch = taken () => (float[n, 16, v] inner) {{
      yes = Constant<value = bool {{1}}>()
      hidden = Conv(normal, first)
      inner = If(yes) <
        then_branch = a () => (float[n, 16, v] hidden2) {{ hidden2 = Relu(hidden) }},
        else_branch = b () => (float[n, 16, v] hidden3) {{ hidden3 = Neg(hidden) }}
      >
    }},
    else_branch = other () => (float[n, 16, v, w] hidden4) {{
      axes = Constant<value_ints = [-1]>()
      hidden = Conv(normal, first)
      hidden4 = Unsqueeze(hidden, axes)
    }}
  >
  y = Conv(chosen, second_weight)
}}"""


def _model(channels: str | int, axis: int = 1) -> onnx.ModelProto:
    shapes = {"scale": (1,), "shift": (1,), "first": (16, 1, 3), "second_weight": (4, 16, 3)}
    weights = ", ".join(f"float{list(shape)} {name}" for name, shape in shapes.items())
    model = onnx.parser.parse_model(_TEXT.format(channels=channels, axis=axis, weights=weights))
    held = {name: numpy_helper.from_array(RNG.normal(size=s).astype(np.float32), name) for name, s in shapes.items()}
    kept = [t for t in model.graph.initializer if t.name not in held]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *held.values()])
    return model


@pytest.mark.parametrize("channels", ["c", 1])
def test_the_branch_of_known_channels_takes_the_place_of_the_choice(channels: str | int) -> None:
    """A network that tells speakers apart had no channel to fold: a choice hid the ranks of all that follows."""
    model = _model(channels)
    view = load(model)
    assert view.shape("x") == (None, 1, None)  # a normalisation with one scale reads one channel
    NORMALIZE(view)
    assert not any(node.op_type == "If" for node in view.nodes)
    feeds = {"x": RNG.normal(size=(2, 1, 30)).astype(np.float32)}
    np.testing.assert_array_equal(run(to_model(view), feeds)[0], run(model, feeds)[0])
    assert not NORMALIZE(view).modified
    folded = quick_fold(model, 0.4)
    assert folded.report.sparsity > 0.2
    assert run(folded.model, feeds)[0].shape == (2, 4, 26)


@pytest.mark.parametrize("shapes", [None, {"x": (1, 1, 30)}])
def test_a_choice_by_a_free_size_stays(shapes: dict[str, tuple[int, ...]] | None) -> None:
    """Also where the size is assumed for the analysis: the file is for any."""
    view = load(_model("c", axis=0), shapes)
    NORMALIZE(view)
    assert sum(node.op_type == "If" for node in view.nodes) == 1
