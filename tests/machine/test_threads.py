"""Threads: as many as there are cores, and none that spins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from onnxfold.graph.run import session
from onnxfold.graph.run.runtime import session_options
from onnxfold.graph.run.session import Session
from onnxfold.machine import threads
from testing.long_graphs import fan
from testing.models import ALL_MODELS, chain_conv
from testing.quick import quick_fold
from tests.machine.control_groups import control_groups


@pytest.mark.parametrize(
    ("lines", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "250000 100000\n", "a/cpu.max": "800000 100000\n"}, 3),
        ("0::/of/the/host\n", {"cpu.max": "10000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("4:cpu,cpuacct:/j\n", {"cpu/j/cpu.cfs_quota_us": "400000\n", "cpu/j/cpu.cfs_period_us": "100000\n"}, 4),
        ("4:cpu,cpuacct:/j\n", {"cpu/j/cpu.cfs_quota_us": "-1\n", "cpu/j/cpu.cfs_period_us": "100000\n"}, 16),
        ("4:memory:/\n", {}, 16),
    ],
)
def test_cores_that_control_groups_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, limits: dict[str, str], expected: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "_affinity", lambda: 16)
    assert threads.usable_cores(*control_groups(tmp_path, lines, limits)) == expected


@pytest.mark.parametrize(("asked", "expected"), [("2", 2), ("64", 16), ("3,2", 3), ("0", 16), ("many", 16), ("", 16)])
def test_the_users_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, expected: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(threads, "_affinity", lambda: 16)
    assert threads.usable_cores(tmp_path, tmp_path / "none") == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no CPU affinity")
def test_cores_of_the_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert threads.usable_cores(tmp_path, tmp_path / "none") == 1
    finally:
        os.sched_setaffinity(0, before)


def test_sessions_do_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither whole models nor single nodes nor the reference of an export."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = session_options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    for pool in ("intra_op", "inter_op"):
        assert options.get_session_config_entry(f"session.{pool}.allow_spinning") == "0"
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert session_options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL, 3).intra_op_num_threads == 3
    assert Session(chain_conv(0))._session.get_session_options().intra_op_num_threads == 1


def test_loaded_libraries_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by every body of a model; those that came with a module that was imported since are found."""
    looked = []
    found = threads.ThreadpoolController
    monkeypatch.setattr(threads, "ThreadpoolController", lambda: (looked.append(1), found())[1])
    threads._thread_pools.cache_clear()
    for _ in range(3):
        with threads.ONE_BLAS_THREAD:
            assert {pool.num_threads for pool in found().lib_controllers if pool.user_api == "blas"} == {1}
    assert len(looked) == 1
    monkeypatch.setitem(sys.modules, "a_new_module", threads)
    with threads.ONE_BLAS_THREAD:
        assert len(looked) == 2


def test_folds_side_by_side_share_the_limit_of_blas() -> None:
    """It holds as long as one of them runs, and then is as it was: a fold changes no other, and leaves nothing."""

    def counts() -> list[int]:
        pools = threads.ThreadpoolController().lib_controllers
        return [pool.num_threads for pool in pools if pool.user_api == "blas"]

    with threads.ThreadpoolController().limit(limits=2, user_api="blas"):
        before = counts()
        one, other = threads.ONE_BLAS_THREAD, threads.ONE_BLAS_THREAD
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert set(counts()) == {1}
        other.__exit__(None, None, None)
        assert counts() == before


def test_tensors_with_many_readers_are_not_optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that onnxruntime's optimiser takes grows with the square of their number."""

    def level() -> object:
        return Session(fan(40))._session.get_session_options().graph_optimization_level

    assert level() == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    monkeypatch.setattr(session, "_MANY_READERS", 10)
    assert level() == ort.GraphOptimizationLevel.ORT_DISABLE_ALL


def test_every_session_has_these_options() -> None:
    """Only where the deployed latency is measured does onnxruntime wait as it likes; a trial run has one thread."""
    root = Path(__file__).parents[2]
    made = {
        path.relative_to(root).as_posix()
        for folder in ("onnxfold", "passes", "export", "edge_bench")
        for path in (root / folder).rglob("*.py")
        if "SessionOptions()" in path.read_text() and not any(p.is_symlink() for p in path.parents)
    }
    assert made == {"onnxfold/graph/run/runtime.py", "onnxfold/graph/run/session.py", "edge_bench/measure_script.py"}


_WAITING = """
import os, sys, time
if sys.argv[1] == "first":
    import torch
from onnxfold.torch_graph.availability import load_torch
from onnxfold.machine import threads
load_torch()
assert "OMP_WAIT_POLICY" not in os.environ
import torch
torch.set_num_threads(2)
x = torch.ones(1 << 17)

def waited() -> float:
    for _ in range(3):
        x.add_(1.0)
    best = 1.0
    for _ in range(60):
        start = time.thread_time(), time.process_time()
        x.add_(1.0)
        time.sleep(0.004)  # the helper waits for the next loop meanwhile
        spent = time.process_time() - start[1] - (time.thread_time() - start[0])
        best = min(best, spent)
    return best

with threads.crowd(lambda: torch.ones(1 << 17).add_(1.0), 2 if sys.argv[1] == "first" else 1):
    print(waited())
"""


@pytest.mark.parametrize("torch_is", ["first", "ours"])
def test_torch_does_not_spin(torch_is: str) -> None:
    """Whoever imported it: between two parallel loops, the helper of this thread uses next to no time of a core."""
    pytest.importorskip("torch")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", _WAITING, torch_is], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2e-4


_INVERTED = """
from onnxfold.graph.files.load import load
from onnxfold.inputs.inversion.deep_inversion import deep_inversion
from testing.models import ALL_MODELS, random_input
model = ALL_MODELS["residual"](0)
made = []
for count in (1, 2):
    made.append(deep_inversion(load(model), random_input(model, 0, 24), threads=count, seed=0).inputs[0]["x"].tobytes())
print(made[0] == made[1])
"""


def test_threads_of_torch_change_no_byte_where_nothing_is_set() -> None:
    """The suite sets how MKL adds up; here it is as users have it."""
    pytest.importorskip("torch")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_"))}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", _INVERTED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr


def test_the_number_of_threads_changes_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a whole fold, without torch; for torch see the tests of deep inversion."""
    made = []
    for count in (1, 3):
        monkeypatch.setattr("onnxfold.graph.run.runtime.usable_cores", lambda count=count: count)
        made.append(quick_fold(ALL_MODELS["residual"](0), 0.4, verify=False).model.SerializeToString())
    assert made[0] == made[1]


def test_what_the_user_says_about_waiting_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.delenv("MKL_CBWR", raising=False)
    with threads.load_with({"OMP_WAIT_POLICY": "passive", "MKL_CBWR": "AUTO"}):
        assert (os.environ["OMP_WAIT_POLICY"], os.environ["MKL_CBWR"]) == ("active", "AUTO")
    assert os.environ["OMP_WAIT_POLICY"] == "active"
    assert "MKL_CBWR" not in os.environ


def test_idle_teams_go() -> None:
    import threading

    before = threading.active_count()
    calls: list[int] = []
    with threads.crowd(lambda: calls.append(1), 1):
        assert not calls
    with threads.crowd(lambda: calls.append(1), 2):
        assert calls
        assert threading.active_count() == before + len(calls)
    for thread in threading.enumerate():
        if thread.name == threads.TEAM:
            thread.join(5)
    assert threading.active_count() == before
