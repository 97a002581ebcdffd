"""An Expand goes where its readers broadcast, whatever sizes are assumed."""

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from onnxfold.graph.files.load import load
from onnxfold.inspection import inspect_model
from onnxfold.passes.normalize.shapes import DropExpand


@pytest.mark.parametrize(("source", "goes"), [("x", True), ("z", False)])
def test_sizes_that_are_equal_by_assumption_alone_are_not(source: str, goes: bool) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 13]> gates
    (float[n, 3, h, w] x, float[n, 3, a, b] z, float[n, 3, 1, 1] gate) => (float[n, 3, h, w] y)
    {{ shape = Shape({source}) wide = Expand(gate, shape) y = Mul(x, wide) }}"""
    view = load(onnx.parser.parse_model(text))
    view.assume({"x": (1, 3, 8, 8), "z": (1, 3, 8, 8), "gate": (1, 3, 1, 1)})
    assert DropExpand()(view).modified == goes
    assert ("Expand" in {node.op_type for node in view.nodes}) != goes


def test_gates_of_images_of_free_size_fold() -> None:
    """The width of what `expand_as` multiplies was a number that the model computes with."""
    text = """<ir_version: 8, opset_import: ["" : 13]> gated (float[n, 3, h, w] x) => (float[n, 4] y)
    {
        a = Conv<pads = [1, 1, 1, 1]>(x, first)
        pooled = GlobalAveragePool(a)
        g = Conv(pooled, gate)
        opened = Sigmoid(g)
        shape = Shape(a)
        wide = Expand(opened, shape)
        gated = Mul(a, wide)
        means = GlobalAveragePool(gated)
        flat = Flatten(means)
        y = Gemm<transB = 1>(flat, last)
    }"""
    model, random = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name, shape in (("first", (8, 3, 3, 3)), ("gate", (8, 8, 1, 1)), ("last", (4, 8))):
        weight = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    assert [group.size for group in inspect_model(model).groups] == [8]
