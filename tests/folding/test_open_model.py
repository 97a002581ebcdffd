"""What is known of a model before the request matters."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfold.budget.costs.running import count_macs
from onnxfold.folding.open_model import open_model
from onnxfold.graph.files.load import load
from onnxfold.progress import silent
from testing.models import chain_conv


def _padded_by_computed_numbers() -> onnx.ModelProto:
    """Return a network whose first node pads by what a chain of nodes makes of constants, as exporters write it."""
    model = chain_conv(0)
    name = model.graph.input[0].name
    constants = {
        "pairs": np.array([[1, 1], [1, 1], [0, 0], [0, 0]], np.int64),
        "start": np.array([-1]), "stop": np.array([-(2**40)]), "axis": np.array([0]), "step": np.array([-1]),
        "flat": np.array([-1]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Slice", ["pairs", "start", "stop", "axis", "step"], ["reversed"]),
        helper.make_node("Transpose", ["reversed"], ["turned"], perm=[1, 0]),
        helper.make_node("Reshape", ["turned", "flat"], ["pads"]),
        helper.make_node("Pad", [name, "pads"], ["padded"]),
    ]
    rest = list(model.graph.node)
    for node in rest:
        node.input[:] = ["padded" if i == name else i for i in node.input]
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items())
    del model.graph.value_info[:]
    return model


def test_macs_are_known_where_sizes_are_computed_from_constants() -> None:
    model = _padded_by_computed_numbers()
    assert count_macs(load(model)) is None
    plain = open_model(chain_conv(0), {}, silent).size.macs
    found = open_model(model, {}, silent).size.macs
    assert plain is not None
    assert found is not None
    assert found > plain
