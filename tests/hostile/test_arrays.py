"""Arrays from anywhere: every damaged, oversized or senseless file is one plain line and code 2."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfold.errors import ConfigError, MemoryLimitError, OnnxFoldError
from onnxfold.inputs.given_inputs import load_arrays
from onnxfold.machine.memory import memory_limit
from testing import models
from tests.hostile.conftest import Command

X = np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32)
Y = np.arange(6) % 5


def _npy(values: np.ndarray[Any, Any], header: bytes | None = None) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    if header is None:
        return file.getvalue()
    length = len(header) + 1
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + header + b"\n" + values.tobytes()


def _zip(path: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def _header(shape: str, descr: str = "'<f4'") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()


def _cut(path: Path) -> None:
    np.savez(path, x=X)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _damaged_deflate(path: Path) -> None:
    np.savez_compressed(path, x=X)
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)


def _one_bit(path: Path) -> None:
    np.savez(path, x=X)
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)


def _lying_directory(path: Path) -> None:
    """Directory and header agree on 2 GB; the stream of 1 KB cannot hold them."""
    rows = 2 << 20
    _zip(path, {"x.npy": _npy(np.zeros(9, np.uint8), _header(f"({rows}, 256)"))}, zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x01\x02")
    real = struct.unpack_from("<I", content, place + 24)[0]
    struct.pack_into("<I", content, place + 24, real - 9 + rows * 1024)
    path.write_bytes(content)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _save(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "does not exist"),
    "folder": (lambda path: path.mkdir(), "holds no .jpg, .jpeg, .png files"),
    "FIFO": (_fifo, "FIFO"),
    "empty": (lambda path: path.touch(), "not an .npz file"),
    "text": (lambda path: path.write_text("no zip"), "not an .npz file"),
    "a single array": (lambda path: path.write_bytes(_npy(X)), "a single .npy array"),
    "cut": (_cut, "not an .npz file"),
    "damaged deflate": (_damaged_deflate, "not an .npz file"),
    "one bit": (_one_bit, "Bad CRC-32"),
    "2^40 rows": (lambda p: _zip(p, {"x.npy": _npy(X, _header("(1099511627776, 3, 8, 8)"))}), "is damaged"),
    "2^200 rows": (lambda p: _zip(p, {"x.npy": _npy(X, _header(f"({2**200}, 3)"))}), "is damaged"),
    "negative rows": (lambda p: _zip(p, {"x.npy": _npy(X, _header("(-6, 3, 8, 8)"))}), "impossible shape"),
    "lying directory": (_lying_directory, "is damaged"),
    "nested header": (lambda p: _zip(p, {"x.npy": _npy(X, b"(" * 9000)}), "not an .npz file"),
    "code as header": (lambda p: _zip(p, {"x.npy": _npy(X, b"__import__('os').abort()")}), "not an .npz file"),
    "long header": (lambda p: _zip(p, {"x.npy": _npy(X, _header("(6, 3, 8, 8)") + b" " * 20000)}), "not an .npz file"),
    "no array": (lambda p: _zip(p, {"x.txt": b"hello"}), "which is not an array"),
    "twice": (lambda p: _zip(p, {"x.npy": _npy(X)}) or _twice(p), "twice"),
    "another compression": (lambda p: _zip(p, {"x.npy": _npy(X)}, zipfile.ZIP_BZIP2), "numpy does not use"),
    "objects": (lambda p: np.savez(p, x=np.array([{}, 1], dtype=object)), "Python objects"),
    "complex": (_save(x=X.astype(np.complex64)), "complex"),
    "text array": (_save(x=np.full((6, 3), "a")), "text"),
    "dates": (_save(x=X, t=np.zeros(3, "datetime64[s]")), "dates"),
    "records": (_save(x=np.zeros(3, [("a", "f4")])), "records"),
    "nothing": (_save(), "no array 'x'"),
    "other names": (_save(z=X), "no array 'x'"),
    "no samples": (_save(x=X[:0]), "no samples"),
    "another rank": (_save(x=X[0]), "has the shape [3, 8, 8]"),
    "another size": (_save(x=X[:, :, :4]), "has the shape"),
    "NaN": (_save(x=np.where(X > 2, np.nan, X)), "NaN"),
    "beyond float32": (_save(x=np.full(X.shape, 1e300)), "cannot hold"),
    "labels only": (_save(y=Y), "no array 'x'"),
    "one-hot labels": (_save(x=X, y=np.eye(6, 5)), "argmax"),
    "text labels": (_save(x=X, y=np.full(6, "cat")), "text"),
    "NaN labels": (_save(x=X, y=np.full(6, np.nan)), "not whole numbers"),
    "fractional labels": (_save(x=X, y=Y + 0.5), "not whole numbers"),
    "negative labels": (_save(x=X, y=Y - 3), "not class numbers"),
    "flags as labels": (_save(x=X, y=Y > 2), "not class numbers"),
    "more labels than classes": (_save(x=X, y=Y + 9), "has 5 classes"),
    "labels of another number": (_save(x=X, y=Y[:4]), "there are 6 samples"),
    "scalar label": (_save(x=X, y=np.int64(3)), "there are 6 samples"),
}  # fmt: skip


def _twice(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("x.npy", _npy(X))


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_one_plain_line(case: str, tmp_path: Path, command: Command) -> None:
    make, words = BAD[case]
    model, data = tmp_path / "m.onnx", tmp_path / "data.npz"
    onnx.save(models.chain_conv(0), str(model))
    make(data)
    done = command("compare", model, model, "--data", data)
    assert done.code == 2, done.err
    assert words in done.line()
    if "label" in case:
        return
    done = command("fold", model, tmp_path / "out.onnx", "--calibration", data, "--samples", 8)
    assert done.code == 2, done.err
    assert words in done.line()
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("option", ["--calibration", "--inputs"])
def test_missing_data_of_a_method_that_does_not_run_the_network(option: str, tmp_path: Path, command: Command) -> None:
    model, out, data = tmp_path / "m.onnx", tmp_path / "out.onnx", tmp_path / "data.npz"
    onnx.save(models.chain_conv(0), str(model))
    fold = ("fold", model, out, "--method", "prune-l1", "--channel-ratio", 0.5, "--no-verify", option, data)
    done = command(*fold)
    assert done.code == 2, done.err
    assert f"'{data}' does not exist" in done.line()
    assert not out.exists()
    np.savez(data, x=X)
    done = command(*fold)
    assert done.code == 0, done.err
    assert "does not run the network, so these options change nothing: calibration" in " ".join(done.out.split())


def test_good_data_of_every_type(tmp_path: Path) -> None:
    arrays = {
        "f": X, "d": X.astype(">f8"), "h": X.astype(np.float16), "b": X > 0, "i": Y, "s": np.float32(3),
        "e": X[:0], "t": np.asfortranarray(X), "u": Y.astype(np.uint8), "a/b": Y,
    }  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "data.npz", **arrays)
        read = load_arrays(tmp_path / "data.npz")
        assert list(read) == list(arrays)
        for name, values in arrays.items():
            assert np.array_equal(read[name], values)
            assert read[name].dtype == np.asarray(values).dtype.newbyteorder("=")


def test_the_limit_counts_what_a_file_inflates_to(tmp_path: Path, command: Command) -> None:
    model, data = tmp_path / "m.onnx", tmp_path / "data.npz"
    onnx.save(models.chain_conv(0), str(model))
    np.savez_compressed(data, x=np.zeros((20000, 3, 8, 8), np.float32))
    assert data.stat().st_size < 100_000
    with memory_limit(10_000_000), pytest.raises(MemoryLimitError, match="uncompressed"):
        load_arrays(data)
    done = command("compare", model, model, "--data", data, "--max-memory", "10M")
    assert done.code == 1
    assert "14.6 MiB" in done.line()
    with memory_limit(20_000_000):
        assert load_arrays(data)["x"].shape == (20000, 3, 8, 8)


@pytest.mark.parametrize("path", [None, 3, b"x.npz", X, "a\0b", "n" * 5000])
def test_paths_that_are_none(path: Any) -> None:
    with pytest.raises(ConfigError):
        load_arrays(path)


def test_every_cut_and_every_changed_byte_is_an_error_or_the_same(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=X[:1, :1], y=Y[:2])
    content = path.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(content)
        broken[random.integers(len(broken))] = random.integers(256)
        path.write_bytes(broken[: random.integers(1, len(broken))] if random.random() < 0.2 else broken)
        try:
            with memory_limit(1 << 24):
                load_arrays(path)
        except OnnxFoldError:
            continue
