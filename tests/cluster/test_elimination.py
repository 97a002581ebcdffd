"""Backward elimination: its costs against least squares from scratch, its order, its partitions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxfold.cluster.clusterings import drops, elimination
from onnxfold.cluster.clusterings.elimination import MERGE_CHARGE, eliminate
from onnxfold.cluster.partition import mean_partition
from onnxfold.cluster.task import reconstruction_error
from onnxfold.statistics.observe import ConsumerMoments
from onnxfold.statistics.samples import parts

Matrix = NDArray[np.float64]


def _moments(seed: int, n: int, consumers: int = 2, rank: int | None = None) -> list[ConsumerMoments]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(consumers):
        x = random.standard_normal((4 * n, n)) @ random.standard_normal((n, n))
        w = random.standard_normal((rank or n, n)) * random.uniform(0.3, 2.0, n)
        found.append(ConsumerMoments(np.cov(x.T, bias=True).reshape(n, n), w.T @ w))
    return found


def _regularised(seen: ConsumerMoments) -> Matrix:
    n = len(seen.covariance)
    return seen.covariance + elimination.RIDGE * np.trace(seen.covariance) / n * np.eye(n)


def _lost(moments: list[ConsumerMoments], encode: Matrix) -> float:
    """Return the relative output energy that the best linear estimate of x from encode @ x misses, by lstsq.

    With a root L of the covariance, E|W (x - B P x)|^2 is the squared length of W (L - B P L).
    """
    total = 0.0
    for seen in moments:
        root = np.linalg.cholesky(_regularised(seen))
        estimate, *_ = np.linalg.lstsq((encode @ root).T, root.T, rcond=None)
        rest = root - estimate.T @ encode @ root
        energy = float((seen.gram * seen.covariance).sum())
        total += float(np.trace(rest.T @ seen.gram @ rest)) / energy
    return total


def _drop(n: int, gone: int) -> Matrix:
    return np.delete(np.eye(n), gone, axis=0)


def _pair(n: int, a: int, b: int, w: float = 0.5) -> Matrix:
    encode = np.eye(n)
    encode[b] = 0.0
    encode[b, [a, b]] = w, 1.0 - w
    return np.delete(encode, a, axis=0)


# -- one step --------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("n", [2, 5, 8])
def test_cost_of_a_drop_is_what_the_best_estimate_misses(n: int, consumers: int) -> None:
    moments = _moments(n, n, consumers)
    costs = elimination._State(moments, n).costs(np.arange(n)).diagonal()
    np.testing.assert_allclose(costs, [_lost(moments, _drop(n, a)) for a in range(n)], rtol=1e-7)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_cost_of_a_merge_is_what_the_best_estimate_misses(n: int) -> None:
    moments = _moments(n, n)
    costs = elimination._State(moments, n).costs(np.arange(n)) / MERGE_CHARGE
    for a in range(n):
        for b in range(n):
            if a != b:
                assert costs[a, b] == pytest.approx(_lost(moments, _pair(n, a, b)), rel=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_the_first_step_is_the_cheapest_of_all(seed: int) -> None:
    n = 6
    moments = _moments(seed, n)
    drops = {(a, -1): _lost(moments, _drop(n, a)) for a in range(n)}
    merges = {(a, b): MERGE_CHARGE * _lost(moments, _pair(n, a, b)) for a in range(n) for b in range(a)}
    found = eliminate(moments, np.arange(n))
    best = min(drops | merges, key=lambda step: (drops | merges)[step])
    assert found.steps[0] == best
    assert found.errors[n - 1] == pytest.approx((drops | merges)[best], rel=1e-7)


def test_a_drop_costs_the_increase_of_the_reconstruction_error() -> None:
    """A channel that the others determine is free; what no consumer reads, as well."""
    random = np.random.default_rng(0)
    x = random.standard_normal((500, 4))
    x = np.column_stack([x, x @ [1.0, -2.0, 0.5, 1.0]])
    w = random.standard_normal((3, 5))
    seen = [ConsumerMoments(np.cov(x.T, bias=True), w.T @ w)]
    costs = elimination._State(seen, 5).costs(np.arange(5)).diagonal()
    errors = [
        reconstruction_error(mean_partition(np.where(np.arange(5) == a, -1, np.arange(5))), seen) for a in range(5)
    ]
    np.testing.assert_allclose(costs, errors, atol=0.01)
    assert max(errors) < 1e-4 < 0.01  # any one of the five follows from the other four
    unread = ConsumerMoments(np.eye(3), np.diag([1.0, 0.0, 1.0]))
    assert eliminate([unread], np.arange(3)).steps[0] == (1, -1)
    assert eliminate([unread], np.arange(3)).errors[2] == 0.0


# -- many steps ------------------------------------------------------------------------------------


def _encode(n: int, steps: tuple[tuple[int, int], ...]) -> tuple[Matrix, Matrix]:
    """Return the encode matrix over the units left, and their units, of weighted means."""
    share, rows = np.ones(n), {u: np.eye(n)[u] for u in range(n)}
    for gone, into in steps:
        if into >= 0:
            total = share[gone] + share[into]
            rows[into] = (share[gone] * rows[gone] + share[into] * rows[into]) / total
            share[into] = total
        del rows[gone]
    return np.stack([rows[u] for u in sorted(rows)]), np.array(sorted(rows))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 3, 5])
def test_what_is_carried_over_agrees_with_a_computation_from_scratch(count: int, seed: int) -> None:
    n = 8
    moments = _moments(seed, n)
    steps = eliminate(moments, np.arange(n)).steps[:count]
    state = elimination._State(moments, n)
    for step in steps:
        state.give_up([step])
    encode, units = _encode(n, steps)
    order = np.argsort(state.units)  # the last units have taken the places of those that went
    assert state.units[order].tolist() == units.tolist()
    for seen, *matrices in zip(moments, state.grams, state.precisions, strict=True):
        gram, precision = (matrix[np.ix_(order, order)] for matrix in matrices)
        covariance = _regularised(seen)
        left = encode @ covariance @ encode.T
        estimate = covariance @ encode.T @ np.linalg.inv(left)
        energy = float((seen.gram * seen.covariance).sum())
        np.testing.assert_allclose(precision, np.linalg.inv(left), rtol=1e-6, atol=1e-8 * np.abs(precision).max())
        refitted = estimate.T @ seen.gram @ estimate / energy
        np.testing.assert_allclose(gram, refitted, rtol=1e-6, atol=1e-9 * np.abs(gram).max())


@pytest.mark.parametrize("seed", range(4))
def test_drops_add_up_to_the_error_of_the_whole(seed: int) -> None:
    """Where nothing is merged, the accumulated costs are the error of the best estimate from what is left."""
    n = 8
    moments = _moments(seed, n)
    found = eliminate(moments, np.arange(n))
    drops = 0
    for drops, (_, into) in enumerate((*found.steps, (0, 0))):  # noqa: B007
        if into >= 0:
            break
    for k in range(n - drops, n):
        assert found.errors[k] == pytest.approx(_lost(moments, found.partition(k).encode), rel=1e-6)
    # With merges: charged more, so never less than what is lost.
    for k in range(1, n):
        assert found.errors[k] >= _lost(moments, found.partition(k).encode) * (1 - 1e-6)


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_errors_fall_with_the_width_and_every_width_can_be_had(n: int) -> None:
    found = eliminate(_moments(n, n), np.arange(n))
    assert found.errors.shape == (n + 1,)
    assert found.errors[0] == np.inf
    assert found.errors[n] == 0.0
    assert (np.diff(found.errors[1:]) <= 0.0).all()
    assert np.isfinite(found.errors[1:]).all()
    for k in range(1, n + 1):
        partition = found.partition(k)
        assert partition.clusters == k
        np.testing.assert_allclose(partition.encode @ partition.decode, np.eye(k), atol=1e-12)
        assert set(partition.labels.tolist()) - {-1} == set(range(k))


def test_partitions_are_nested() -> None:
    """A pair that shares a cluster at one width shares it, or is gone, at all smaller ones."""
    n = 12
    found = eliminate(_moments(3, n), np.arange(n))
    for k in range(2, n + 1):
        wide, narrow = found.partition(k).labels, found.partition(k - 1).labels
        assert (narrow[wide < 0] < 0).all()
        for c in range(k):
            assert len(set(narrow[wide == c].tolist())) == 1


# -- duplicates and blocks -------------------------------------------------------------------------


def test_duplicates_go_first_and_cost_nothing() -> None:
    n, classes = 7, np.array([0, 1, 0, 2, 1, 0, 3])
    random = np.random.default_rng(0)
    x = random.standard_normal((300, 4))[:, classes]
    w = random.standard_normal((5, n))
    found = eliminate([ConsumerMoments(np.cov(x.T, bias=True), w.T @ w)], classes)
    assert set(found.steps[:3]) == {(2, 0), (4, 1), (5, 0)}
    np.testing.assert_array_equal(found.errors[4:], 0.0)
    assert found.errors[3] > 0.0
    assert found.partition(4).labels.tolist() == classes.tolist()


def test_without_duplicates_what_follows_is_the_same() -> None:
    """Where channels are only dropped, a class of equal channels is one channel with the sum of their columns."""
    classes = np.array([0, 1, 0, 2, 1, 0, 3, 0, 4])
    random = np.random.default_rng(0)
    x = random.standard_normal((300, 5)) @ random.standard_normal((5, 5))
    w = random.standard_normal((6, len(classes)))
    sums = np.stack([w[:, classes == c].sum(axis=1) for c in range(5)], axis=1)
    whole, single = (
        eliminate([ConsumerMoments(np.cov(v.T, bias=True), u.T @ u)], c, merges=False)
        for v, u, c in ((x[:, classes], w, classes), (x, sums, np.arange(5)))
    )
    names = np.unique(classes, return_index=True)[1]
    assert [gone for gone, _ in whole.steps[4:]] == [names[gone] for gone, _ in single.steps]
    np.testing.assert_allclose(whole.errors[1:6], single.errors[1:], rtol=0.05, atol=1e-6)


def test_duplicates_go_first_even_where_a_drop_is_free() -> None:
    moments = [ConsumerMoments(np.diag([1.0, 1.0, 1.0, 1.0]), np.diag([1.0, 1.0, 0.0, 1.0]))]
    assert eliminate(moments, np.array([0, 1, 2, 1])).steps[:2] == ((3, 1), (2, -1))


@pytest.mark.parametrize("equal", [0, 3])
@pytest.mark.parametrize("count", [2, 3])
def test_blocks_stay_equally_wide(count: int, equal: int) -> None:
    n = 4 * count
    blocks = np.repeat(np.arange(count), 4)
    blocks = np.random.default_rng(1).permutation(blocks)
    classes = np.arange(n)
    classes[np.flatnonzero(blocks == 0)[:equal]] = n  # in one block alone
    found = eliminate(_moments(count, n), classes, blocks, narrowest=count)
    assert np.flatnonzero(np.isfinite(found.errors))[0] == count
    for k in range(count, n + 1, count):
        partition = found.partition(k)
        of_cluster = [set(blocks[partition.labels == c].tolist()) for c in range(k)]
        assert all(len(b) == 1 for b in of_cluster)  # nothing is merged across blocks
        assert np.bincount([b.pop() for b in of_cluster], minlength=count).tolist() == [k // count] * count


def test_duplicates_that_lie_in_different_blocks_stay_apart() -> None:
    blocks, classes = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])
    found = eliminate(_moments(0, 4), classes, blocks, narrowest=2)
    assert found.steps[0] == (1, 0)
    assert all(into < 0 or blocks[gone] == blocks[into] for gone, into in found.steps)


# -- large groups ----------------------------------------------------------------------------------


def test_large_groups_lose_portions_but_have_every_width(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 48
    moments = _moments(5, n, 1, rank=8)
    one_by_one = eliminate(moments, np.arange(n))
    monkeypatch.setattr(elimination, "_ONE_BY_ONE", 16)
    monkeypatch.setattr(elimination, "_PORTIONS", 8)
    portions = eliminate(moments, np.arange(n))
    assert len(portions.steps) == len(one_by_one.steps) == n - 1
    assert [portions.partition(k).clusters for k in range(1, n + 1)] == list(range(1, n + 1))
    assert (np.diff(portions.errors[1:]) <= 1e-12).all()
    assert portions.steps != one_by_one.steps
    for k in (40, 24, 12):  # in portions is greedier, not different in kind
        exact, coarse = (_lost(moments, found.partition(k).encode) for found in (one_by_one, portions))
        assert coarse <= 3.0 * exact + 0.02


def test_groups_above_256_run_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 260
    calls: list[int] = []
    cheapest = elimination._State.cheapest

    def counted(self: elimination._State, inside: NDArray[np.bool_], count: int) -> list[tuple[int, int]]:
        calls.append(count)
        return cheapest(self, inside, count)

    monkeypatch.setattr(elimination._State, "cheapest", counted)
    found = eliminate(_moments(0, n, 1, rank=8), np.arange(n), narrowest=200)
    assert calls[0] == n // 64
    assert len(found.steps) == n - 200
    assert [found.partition(k).clusters for k in (200, 215, 259)] == [200, 215, 259]


# -- invariances -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_permutation_of_the_channels_permutes_the_result(seed: int) -> None:
    n = 9
    moments = _moments(seed, n)
    order = np.random.default_rng(seed).permutation(n)
    shuffled = [ConsumerMoments(m.covariance[np.ix_(order, order)], m.gram[np.ix_(order, order)]) for m in moments]
    found, other = eliminate(moments, np.arange(n)), eliminate(shuffled, np.arange(n))
    np.testing.assert_allclose(found.errors[1:], other.errors[1:], rtol=1e-6)

    def clusters(labels: NDArray[np.int64], names: NDArray[np.int64]) -> set[frozenset[int]]:
        return {frozenset(names[labels == c].tolist()) for c in set(labels.tolist())}

    for k in range(1, n + 1):
        a, b = found.partition(k).labels, other.partition(k).labels
        assert clusters(a, np.arange(n)) == clusters(b, order)


def test_the_scale_of_a_consumer_does_not_matter() -> None:
    """Every consumer counts relative to its own output."""
    moments = _moments(2, 6)
    scaled = [moments[0], ConsumerMoments(moments[1].covariance, 100.0 * moments[1].gram)]
    np.testing.assert_allclose(eliminate(scaled, np.arange(6)).errors, eliminate(moments, np.arange(6)).errors)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_consumers_that_say_nothing(value: float) -> None:
    """Dead or diverged outputs take no part; every width can still be had."""
    useful = _moments(0, 5, 1)
    useless = ConsumerMoments(np.full((5, 5), value), np.eye(5))
    assert eliminate([*useful, useless], np.arange(5)).steps == eliminate(useful, np.arange(5)).steps
    alone = eliminate([useless], np.arange(5))
    assert [alone.partition(k).clusters for k in range(1, 6)] == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(alone.errors[1:], 0.0)


@pytest.mark.parametrize("waiting", [1, 7, 1000])
@pytest.mark.parametrize("consumers", [1, 2])
def test_drops_that_wait_choose_and_cost_what_single_steps_do(
    consumers: int, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drops, "_WAITING", waiting)
    monkeypatch.setattr(drops, "_PART", 5)
    n = 40
    moments = _moments(1, n, consumers)
    plain = elimination._State(moments, n, merges=False)
    late = drops.Drops(np.arange(n), *([m.copy() for m in matrices] for matrices in (plain.grams, plain.precisions)))
    for count in (1, 4, 9, 2, 1, 8, 13):
        steps = plain.cheapest(plain.units % 3 != count % 3, count)
        assert late.cheapest(late.units % 3 != count % 3, count) == steps
        assert late.give_up(steps) == pytest.approx(plain.give_up(steps), rel=1e-8)
        assert late.units.tolist() == sorted(plain.units)


def _widen(monkeypatch: pytest.MonkeyPatch, wide: int) -> None:
    """Let layers above a size be wide, and matrices of theirs have several parts."""
    monkeypatch.setattr(elimination, "_ONE_BY_ONE", wide)
    monkeypatch.setattr(elimination, "row_parts", lambda count: parts(count, 7))


@pytest.mark.parametrize("merges", [True, False])
@pytest.mark.parametrize(("shrinkage", "kept"), [(0.5, np.float32), (0.0, np.float64)])
def test_wide_layers_lose_what_others_do(
    shrinkage: float, kept: type, merges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 where covariances were shrunk, and in float64 where channels all but follow from others."""
    n = 48
    moments = [ConsumerMoments(m.covariance, m.gram, shrinkage) for m in _moments(0, n)]
    narrow = eliminate(moments, np.arange(n), merges=merges)
    _widen(monkeypatch, 16)
    assert elimination._State(moments, n, merges=merges).precisions[0].dtype == kept
    wide = eliminate(moments, np.arange(n), merges=merges)
    np.testing.assert_allclose(wide.errors[1:], narrow.errors[1:], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("scaled", [1.0, 1e-4])
def test_the_inverse_of_a_wide_layer(scaled: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Symmetric and whole, also between the parts in which it is worked on, and where scales differ."""
    _widen(monkeypatch, 2)
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 20)) * np.geomspace(1.0, scaled, 20)
    found = elimination._inverse(x.T @ x, 0.0)
    assert found.dtype == np.float32
    expected = np.linalg.inv(x.T @ x)
    apart = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()))
    assert np.abs((found - expected) / apart).max() <= 1e-5


def test_wide_layers_that_float32_cannot_tell_apart_take_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    _widen(monkeypatch, 2)
    near = np.array([[1.0, 1.0, 0.0], [1.0, 1.0 + 1e-9, 0.0], [0.0, 0.0, 1.0]])
    assert elimination._inverse(near, 1e-9).dtype == np.float64
    with pytest.raises(np.linalg.LinAlgError):
        elimination._inverse(-np.eye(3), 0.0)
