"""The memory limit: what the machine has, what a user allows, and who asks."""

import platform
from pathlib import Path

import pytest

from onnxfold.config import FoldConfig
from onnxfold.errors import ConfigError, MemoryLimitError
from onnxfold.machine import memory
from tests.machine.control_groups import control_groups


@pytest.mark.parametrize(
    ("lines", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "1000000\n"}, 1_000_000),
        ("0::/a/b\n", {"a/b/memory.max": "500000\n", "a/memory.max": "1000000\n"}, 500_000),
        ("0::/of/the/host\n", {"memory.max": "700000\n"}, 700_000),
        ("5:cpu:/x\n7:memory:/job\n", {"memory/job/memory.limit_in_bytes": "300000\n"}, 300_000),
        ("7:memory:/of/the/host\n0::/\n", {"memory/memory.limit_in_bytes": "400000\n"}, 400_000),
    ],
)
def test_control_groups_of_both_versions(tmp_path: Path, lines: str, limits: dict[str, str], expected: int) -> None:
    assert memory.machine_bytes(*control_groups(tmp_path, lines, limits)) == expected


def test_without_control_groups_the_machine_decides(tmp_path: Path) -> None:
    machine = memory.machine_bytes(*control_groups(tmp_path, "0::/\n", {"memory.max": "max\n"}))
    assert machine == memory.machine_bytes(tmp_path, tmp_path / "missing") > 1 << 28
    assert 0 < memory.limit() < memory.machine_bytes()


def test_limit_holds_inside_the_block_only() -> None:
    before = memory.limit()
    with memory.memory_limit("1M") as most:
        assert memory.limit() == most == 1 << 20
        with memory.memory_limit(None):
            assert memory.limit() == 1 << 20
        memory.require(1 << 20, "a tensor")
        with pytest.raises(MemoryLimitError, match=r"a tensor needs 2\.0 MiB, and the limit is 1\.0 MiB: .*--max-mem"):
            memory.require(2 << 20, "a tensor")
    assert memory.limit() == before


def test_the_machine_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by every step: its limits are read from a dozen files."""
    machines = iter([1 << 30, 1 << 20])
    monkeypatch.setattr(memory, "machine_bytes", lambda: next(machines))
    with memory.memory_limit(None) as most:
        memory.require(most, "a tensor")
        assert memory.limit() == most


def test_sizes_beyond_64_bits_are_counted() -> None:
    assert memory.array_bytes((2**40, 2**40), 4) == 2**82
    with pytest.raises(MemoryLimitError, match=r"needs 1\.9e\+25 bytes"):
        memory.require(2**84, "it")


@pytest.mark.parametrize("text", ["a lot", "-1", "0", "1T"])
def test_bad_limits(text: str) -> None:
    with pytest.raises(ConfigError, match="is not bytes, for example"):
        FoldConfig(max_memory=text)


def _anonymous_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_what_lies_between_blocks_in_use_is_given_back() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("needs glibc")
    blocks = [bytearray(64 << 10) for _ in range(2000)]
    kept = blocks[::8]
    del blocks
    before = _anonymous_bytes()
    memory.give_back()
    assert before - _anonymous_bytes() > 64 << 20
    assert len(kept) == 250
