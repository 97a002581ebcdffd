"""Arrays that wait in a file: each is read as it was written, however often its neighbours come and go."""

import gc

import ml_dtypes
import numpy as np
import pytest

from onnxfold.graph.spill import SpilledArray, SpillFile


def _random(seed: int, numbers: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, (numbers, 3)).astype(dtype)


def _end(file: SpillFile) -> int:
    return max((array.end for known in file._waiting if (array := known()) is not None), default=0)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.float16, ml_dtypes.bfloat16])
def test_an_array_is_read_as_it_was_written(dtype: type) -> None:
    values = _random(0, 5000, dtype)
    for array in (values, values[::2], values.T):
        loaded = SpillFile().keep(array).load()
        assert loaded.dtype == values.dtype
        np.testing.assert_array_equal(loaded, array)
        assert not loaded.flags.writeable


def test_arrays_that_come_and_go_keep_their_values_in_little_room() -> None:
    """At most 8 of them wait at a time, of many sizes, in a file of 14 times the largest."""
    file, draw, waiting, most = SpillFile(), np.random.default_rng(0), dict[int, SpilledArray](), 0
    for seed in range(300):
        waiting[seed] = file.keep(_random(seed, int(draw.integers(1, 20_000))))
        most = max(most, _end(file))
        if len(waiting) == 8:
            gone = draw.choice(list(waiting), int(draw.integers(1, 8)), replace=False)
            for key in gone:
                del waiting[int(key)]
        for key, spilled in waiting.items():
            np.testing.assert_array_equal(spilled.load(), _random(key, len(spilled.load())))
    assert most <= 14 * 20_000 * 3 * 4


def test_the_room_of_an_array_that_is_read_is_not_written() -> None:
    file = SpillFile()
    part = file.keep(_random(0, 50_000)).load()[10:20]  # the array itself is gone, a part of it is not
    gc.collect()
    others = [file.keep(_random(seed, 50_000)) for seed in (1, 2, 3)]
    np.testing.assert_array_equal(part, _random(0, 50_000)[10:20])
    before = _end(file)
    del part, others
    gc.collect()
    again = [file.keep(_random(seed, 50_000)) for seed in (4, 5, 6, 7)]
    assert _end(file) == before
    for seed, spilled in enumerate(again, 4):
        np.testing.assert_array_equal(spilled.load(), _random(seed, 50_000))


def test_arrays_of_a_file_that_was_closed_are_still_read() -> None:
    file = SpillFile()
    old = file.keep(_random(0, 50_000))
    file.close()
    assert _end(file) == 0
    new = file.keep(_random(1, 50_000))
    np.testing.assert_array_equal(old.load(), _random(0, 50_000))
    del old
    gc.collect()
    other = file.keep(_random(2, 50_000))  # not in the room of the old one, which was in another file
    for seed, spilled in ((1, new), (2, other)):
        np.testing.assert_array_equal(spilled.load(), _random(seed, 50_000))


def test_a_full_disk_loses_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    file = SpillFile()
    first = file.keep(_random(0, 50_000))
    before = _end(file)
    with monkeypatch.context() as patch:
        patch.setattr(file, "_file", _Full(file._file))
        with pytest.raises(OSError, match="No space"):
            file.keep(_random(1, 50_000))
    gc.collect()
    again = file.keep(_random(2, 50_000))
    assert _end(file) == 2 * before
    for seed, spilled in ((0, first), (2, again)):
        np.testing.assert_array_equal(spilled.load(), _random(seed, 50_000))


class _Full:
    """A file on a disk that is full."""

    def __init__(self, file: object) -> None:
        self._of = file

    def __getattr__(self, name: str) -> object:
        return getattr(self._of, name)

    def write(self, _: object) -> int:
        raise OSError(28, "No space left on device")
