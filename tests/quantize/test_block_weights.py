"""MatMulNBits: what its numbers stand for, and folds of models that have them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from onnxfold.channels.declarations import Role
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.inspection import inspect_model
from onnxfold.quantize.block_weights import (
    BlockFormat,
    dequantize_blocks,
    dequantized_rows,
    pack_numbers,
    quantized_rows,
    requantize_blocks,
    unpack_numbers,
)
from testing.compare import relative_difference
from testing.few_bits import in_few_bits
from testing.genai_models import genai_decoder, genai_feeds
from testing.models import run
from testing.quick import quick_fold

FORMS = [(4, True), (4, False), (8, True)]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packed_numbers_come_back(bits: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << bits, (3, 7)).astype(np.uint8)
    np.testing.assert_array_equal(unpack_numbers(pack_numbers(numbers, bits), bits, 7), numbers)


@pytest.mark.parametrize("has_zero_points", [True, False])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_what_numbers_stand_for_is_within_half_a_step(bits: int, has_zero_points: bool) -> None:
    kind = BlockFormat(bits, 16, has_zero_points)
    rows = np.random.default_rng(0).standard_normal((5, 41)).astype(np.float32)
    weight, scales, zeros = quantized_rows(rows, kind, np.dtype(np.float32))
    found = dequantized_rows(weight, scales, zeros, kind, 41)
    steps = np.repeat(np.abs(scales), 16, axis=1)[:, :41]
    # The range of a symmetric block ends one step earlier on one side.
    assert (np.abs(found - rows) <= (0.51 if has_zero_points else 1.01) * steps).all()
    if not has_zero_points:  # what is on the grid stays there
        again = quantized_rows(found, kind, np.dtype(np.float32))
        np.testing.assert_array_equal(again[0], weight)
        np.testing.assert_array_equal(again[1], scales)


@pytest.mark.parametrize(("bits", "symmetric"), FORMS)
def test_opened_weights_are_those_that_onnxruntime_computes_with(bits: int, symmetric: bool) -> None:
    model = in_few_bits(genai_decoder("biased"), bits=bits, symmetric=symmetric)
    feeds = genai_feeds(model, 2, 5, 0)
    view = load(model)
    found = dequantize_blocks(view)
    assert len(found) == 11
    assert not any(node.op_type == "MatMulNBits" for node in view.nodes)
    assert relative_difference(run(model, feeds), run(to_model(view), feeds)) <= 1e-4
    assert requantize_blocks(view, found) == 11
    for name in load(model).weights:
        np.testing.assert_array_equal(view.weight(name), load(model).weight(name))
    assert [n.op_type for n in view.nodes if n.op_type == "MatMul"] == []


@pytest.mark.parametrize(("bits", "symmetric"), FORMS)
def test_a_fold_stores_few_bits_again(bits: int, symmetric: bool) -> None:
    """As exactly as those of the model that is folded as numbers, and less of them; others keep their bytes."""
    model = in_few_bits(genai_decoder("packed"), bits=bits, symmetric=symmetric)
    options = {"channel_ratio": 0.25, "samples": 4, "verify": False}
    result = quick_fold(model, **options)
    kinds = {n.op_type for n in result.model.graph.node}
    assert "MatMulNBits" in kinds
    assert "MatMul" not in kinds
    assert (
        result.report.after.size_bytes
        < result.report.before.size_bytes
        < 0.5 * len(genai_decoder("packed").SerializeToString())
    )
    assert any(f"weights of {bits} bits in blocks of 16 were folded as numbers" in note for note in result.report.notes)
    view = load(model)
    dequantize_blocks(view)
    numbers = quick_fold(to_model(view), **options)
    feeds = genai_feeds(model, 2, 9, 0)
    whole, expected, found = (run(one, feeds)[0] for one in (model, numbers.model, result.model))
    lost = np.linalg.norm(expected - whole)
    assert np.linalg.norm(found - expected) <= (0.1 if bits == 8 else 1.5) * lost
    kept = {t.name: numpy_helper.to_array(t) for t in result.model.graph.initializer}
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    same = [name for name in stored if name in kept and np.array_equal(stored[name], kept[name])]
    assert any(name.startswith("head") for name in same)


def test_what_cannot_be_opened_stays_with_its_reason() -> None:
    model = in_few_bits(genai_decoder("packed"))
    node = next(n for n in model.graph.node if n.op_type == "MatMulNBits" and "gate_0" in n.output[0])
    node.input.extend([""] * (4 - len(node.input)) + ["order"])
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(32, np.int32), "order"))
    found = inspect_model(model)
    rows = {m.axis.tensor for g in found.groups for m in g.members if m.role is Role.CONSUMER}
    assert any("down_1" in name for name in rows)
    assert not any("down_0" in name for name in rows)
    assert any("quantised in blocks of 16" in refusal.reason for refusal in found.refusals)


def test_few_bits_are_not_quantised_to_int8() -> None:
    with pytest.raises(UnsupportedModelError, match="quantised already, see MatMulNBits"):
        quick_fold(in_few_bits(genai_decoder("packed")), 0.1, dtype="int8", samples=2)


def test_a_table_in_blocks_that_the_head_shares_stays() -> None:
    """As onnxruntime-genai's builder writes it: the table is the head's weight, brought into another shape."""
    model = in_few_bits(genai_decoder("packed"))
    head = next(n for n in model.graph.node if n.output[0] == "logits")
    words, blocks, _ = load(model).weights[head.input[1]].shape
    embedding = next(n for n in model.graph.node if n.output[0] == "words")
    shape = numpy_helper.from_array(np.array([words, -1]), "table_shape")
    scales = numpy_helper.from_array(np.full((words, blocks), 0.1, np.float32), "table_scales")
    model.graph.initializer.extend([shape, scales])
    looked_up = helper.make_node(
        "GatherBlockQuantized", ["table", "input_ids", "table_scales"], ["words"], domain="com.microsoft", bits=4,
        block_size=16, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    embedding.CopyFrom(looked_up)
    model.graph.node.insert(0, helper.make_node("Reshape", [head.input[1], "table_shape"], ["table"]))
    result = quick_fold(model, channel_ratio=0.25, samples=4)
    kept = {t.name: numpy_helper.to_array(t) for t in result.model.graph.initializer}
    np.testing.assert_array_equal(kept[head.input[1]], load(model).weight(head.input[1]))
    assert result.report.fidelity is not None
