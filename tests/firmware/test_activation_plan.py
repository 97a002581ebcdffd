"""Places of activations: nothing overlaps that is needed at the same time, and little is wasted."""

from itertools import combinations

import numpy as np
import pytest

from onnxfold.export.firmware.interface import ALIGNMENT, Buffer, align, plan


def test_a_chain_needs_its_two_largest_neighbours() -> None:
    sizes = [16, 160, 48, 96, 16]
    chain = [Buffer(size, i, i + 1) for i, size in enumerate(sizes)]
    assert plan(chain) == 160 + 48
    assert plan([]) == 0


def test_what_is_not_needed_at_once_shares_memory() -> None:
    first, second = Buffer(100, 0, 1), Buffer(100, 2, 3)
    assert plan([first, second]) == align(100)
    assert first.offset == second.offset == 0


@pytest.mark.parametrize("seed", range(20))
def test_nothing_overlaps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    buffers = []
    for _ in range(30):
        first = int(rng.integers(0, 20))
        buffers.append(Buffer(int(rng.integers(1, 500)), first, first + int(rng.integers(0, 6))))
    total = plan(buffers)
    for a, b in combinations(buffers, 2):
        if a.first <= b.last and b.first <= a.last:
            assert a.offset + a.size_bytes <= b.offset or b.offset + b.size_bytes <= a.offset
    assert all(b.offset % ALIGNMENT == 0 and b.offset + b.size_bytes <= total for b in buffers)
    live = max(sum(align(b.size_bytes) for b in buffers if b.first <= t <= b.last) for t in range(30))
    assert live <= total <= sum(align(b.size_bytes) for b in buffers)
