"""Chains of nodes that alone read each other's results."""

from onnxfold.graph.files.load import load
from onnxfold.graph.patterns import chain, only_reader
from testing.models import ALL_MODELS


def test_a_chain_ends_where_others_read() -> None:
    view = load(ALL_MODELS["residual"](0))
    conv = view.producer("conv_0_out")
    assert conv is not None
    found = chain(view, conv, "Conv", "BatchNormalization", "Relu")
    assert found is not None
    assert [n.name for n in found] == ["conv_0", "bn_0", "relu_0"]
    assert chain(view, conv, "Conv", "Relu") is None
    assert chain(view, conv, "Relu") is None
    assert chain(view, conv, "Conv", "BatchNormalization", "Relu", "Conv") is None  # an Add reads it, too


def test_an_output_of_the_graph_has_no_only_reader() -> None:
    model = ALL_MODELS["chain_conv"](0)
    reader = only_reader(load(model), "conv_0_out")
    assert reader is not None
    model.graph.output.add(name="conv_0_out")
    assert only_reader(load(model), "conv_0_out") is None
