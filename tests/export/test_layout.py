"""Which reshapes keep the order of elements, checked against numpy."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfold.export.tflite.layout import Layout, channels_last, keeps_order, plain

_SHAPES = st.sampled_from(
    [
        ((2, 6, 4), (2, 24)),
        ((2, 6, 4), (2, 2, 3, 4)),
        ((1, 6, 1, 4), (6, 4)),
        ((2, 3, 4, 5), (2, 3, 20)),
        ((2, 3, 4, 5), (2, 12, 5)),
        ((2, 6, 1, 1), (2, 6)),
        ((2, 6), (2, 1, 6)),
        ((4, 6), (6, 4)),
        ((2, 4, 3), (2, 2, 2, 3)),
    ]
)


@settings(max_examples=200)
@given(_SHAPES, st.data())
def test_kept_order_is_numpys(shapes: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject) -> None:
    before, after = shapes
    source, result = (Layout(tuple(data.draw(st.permutations(range(len(s)))))) for s in shapes)
    values = np.arange(math.prod(before)).reshape(before)
    onnx_way = values.reshape(after).transpose(result.perm).reshape(-1)
    direct = values.transpose(source.perm).reshape(-1)
    if keeps_order(before, source, after, result):
        np.testing.assert_array_equal(onnx_way, direct)


def test_kept_orders_are_found() -> None:
    image, rows = channels_last(4), channels_last(3)
    assert keeps_order((2, 3, 4, 5), image, (2, 3, 20), rows)
    assert keeps_order((2, 3, 1, 1), image, (2, 3), plain(2))
    assert not keeps_order((2, 3, 4, 5), image, (2, 60), plain(2))
    assert keeps_order((2, 3, 4, 5), image, (2, 60), Layout((0, 1), (3, 4, 5)))


def test_flattened_order_is_that_of_a_transposed_map() -> None:
    values = np.arange(60).reshape(1, 3, 4, 5)
    np.testing.assert_array_equal(
        Layout((0, 1), (3, 4, 5)).values(values.reshape(1, 60)), values.transpose(0, 2, 3, 1).reshape(1, 60)
    )
