"""The cache: what is kept, what goes first, and what is no cache file."""

from __future__ import annotations

import os
import shutil
from multiprocessing import get_context
from pathlib import Path

import pytest

from onnxfold.config import NO_CACHE
from onnxfold.config.values import DEFAULT_CACHE
from onnxfold.errors import ConfigError
from onnxfold.files import cache as module
from onnxfold.files.cache import Cache, key_of

KEY = key_of({"model": b"bytes", "seed": "0"})


def _others(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix == ".cache")


def test_what_is_kept_is_found_by_its_kind_and_key(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "folder")
    assert cache.read("images", KEY, bytes) is None
    cache.put("images", KEY, b"content")
    assert Cache(tmp_path / "new" / "folder").read("images", KEY, bytes) == b"content"
    assert cache.read("times", KEY, bytes) is None
    assert cache.read("images", key_of({"model": b"bytes", "seed": "1"}), bytes) is None
    assert cache.notes == []
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o077 == 0


def test_keys_tell_where_a_part_ends() -> None:
    assert key_of({"a": "x", "b": "yz"}) != key_of({"a": "xy", "b": "z"})


def test_keys_hang_on_code_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("code_version", "machine_kind"):
        with monkeypatch.context() as another:
            another.setattr(module, name, lambda: "another")
            assert key_of({"model": b"bytes", "seed": "0"}) != KEY


def test_the_version_of_the_code_hangs_on_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "cache.py").write_text("")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(module, "__file__", str(tmp_path / "files" / "cache.py"))
    found = []
    for text in ("a = 1\n", "a = 2\n"):
        (tmp_path / "elsewhere" / "deep.py").write_text(text)
        found.append(module.code_version.__wrapped__())
    assert found[0] != found[1]


def test_the_least_recently_wanted_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=1000)
    keys = [key_of({"n": str(n)}) for n in range(4)]
    for age, key in enumerate(keys[:3]):
        cache.put("images", key, bytes(250))
        os.utime(tmp_path / f"images-{key}.cache", (1000 + age, 1000 + age))
    foreign = tmp_path / "holiday.jpg"
    foreign.write_bytes(bytes(5000))
    assert cache.read("images", keys[0], bytes) is not None
    cache.put("images", keys[3], bytes(250))
    assert [cache.read("images", key, bytes) is not None for key in keys] == [True, False, True, True]
    assert sum(p.stat().st_size for p in _others(tmp_path)) <= 1000
    assert foreign.exists()


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=100)
    cache.put("images", KEY, bytes(100))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["flipped", "cut", "foreign", "empty", "renamed", "folder", "link", "fifo", "large"])
def test_damaged_and_foreign_files_are_ignored_with_a_note(tmp_path: Path, damage: str) -> None:
    folder, cache = tmp_path / "cache", Cache(tmp_path / "cache", limit=4096)
    path = folder / f"images-{KEY}.cache"
    cache.put("images", KEY, b"content")
    good = path.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(good)
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "link":
        path.symlink_to(elsewhere)
    elif damage == "fifo":
        os.mkfifo(path)
    elif damage == "renamed":
        cache.put("images", other := key_of({"n": "1"}), b"content")
        (folder / f"images-{other}.cache").rename(path)
    else:
        bad = {"flipped": good[:-1] + b"?", "cut": good[:-1], "foreign": b"\x89PNG", "empty": b"", "large": bytes(5000)}
        path.write_bytes(bad[damage])
    assert cache.read("images", KEY, bytes) is None
    assert len(cache.notes) == 1
    assert str(path) in cache.notes[0]
    assert "computed again" in cache.notes[0]
    if damage != "folder":  # is replaced, and nothing else is touched
        cache.put("images", KEY, b"content")
        assert cache.read("images", KEY, bytes) == b"content"
    assert elsewhere.read_bytes() == good


def test_a_folder_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "folder")
    assert cache.read("images", KEY, bytes) is None
    cache.put("images", KEY, b"content")
    assert [note for note in cache.notes if "cannot be written" in note]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_read(tmp_path: Path) -> None:
    Cache(tmp_path).put("images", KEY, b"content")
    tmp_path.chmod(0o500)
    try:
        cache = Cache(tmp_path)
        assert cache.read("images", KEY, bytes) == b"content"
        cache.put("images", key_of({"n": "1"}), b"content")
        assert "Permission denied" in cache.notes[0]
    finally:
        tmp_path.chmod(0o700)


def test_a_file_as_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file: give a folder, or 'none'"):
        Cache(tmp_path / "file")


@pytest.mark.parametrize("where", [None, NO_CACHE])
def test_none_keeps_nothing(where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Cache(where)
    cache.put("images", KEY, b"content")
    assert cache.read("images", KEY, bytes) is None
    assert not cache.is_on
    assert list(tmp_path.iterdir()) == []


def test_the_default_is_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    Cache(DEFAULT_CACHE).put("images", KEY, b"content")
    assert _others(tmp_path / "caches" / "onnxfold")
    shutil.rmtree(tmp_path / "caches")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, by the specification
    monkeypatch.setenv("HOME", str(tmp_path))
    Cache(DEFAULT_CACHE).put("images", KEY, b"content")
    assert [p.name for p in tmp_path.iterdir()] in ([".cache"], ["Library"])


def test_without_a_home_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    cache = Cache(DEFAULT_CACHE)
    cache.put("images", KEY, b"content")
    assert not (tmp_path / "missing").exists()
    assert "give --cache DIR" in cache.notes[0]


def _use(folder: Path) -> None:
    cache = Cache(folder, limit=3000)
    for n in range(20):
        key = f"{n % 4:064x}"
        cache.put("images", key, bytes(900))
        assert cache.read("images", key, bytes) in (None, bytes(900))
    assert cache.notes == []


def test_processes_may_write_at_a_time(tmp_path: Path) -> None:
    processes = [get_context("fork").Process(target=_use, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60.0)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(_others(tmp_path)) <= 3
