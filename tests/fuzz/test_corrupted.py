"""Corrupted files: a valid result or one clear line, never a traceback, a hang, a trace on disk, or a changed input."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxfold.cli import cli
from onnxfold.errors import OnnxFoldError
from testing import models
from testing.rule_models.table import RULE_MODELS

SEEDS = range(150)
CHUNK = 25
LIMIT = 20

MODELS: list[tuple[str, Callable[[], onnx.ModelProto]]] = [
    ("chain", lambda: models.chain_conv(0)),
    ("mlp", lambda: models.mlp(1, bn=True)),
    ("residual", lambda: models.residual(2)),
    ("grouped", lambda: models.grouped_conv(3)),
    ("nhwc", lambda: models.nhwc_tail(4)),
    ("slice", RULE_MODELS["Slice-17"]),
    ("lstm", RULE_MODELS["LSTM"]),
]


class HangError(Exception):
    """A fold took too long."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Processor time, and twenty times as long by the clock: on a busy machine a fold may wait for its turn."""

    def ring(signum: int, frame: object) -> None:
        raise HangError(f"longer than {seconds} s")

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, 20 * seconds)}
    before = {number: signal.signal(number, ring) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


# -- corruptions of bytes ----------------------------------------------------------------------


def _flip_bits(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 2, 8, 50]))):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _flip_bits_in_front(data: bytes, rng: np.random.Generator) -> bytes:
    """The nodes lie in front, the weights behind."""
    front = min(len(data), 1500)
    return _flip_bits(data[:front], rng) + data[front:]


def _truncate(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(len(data)))]


def _splice(data: bytes, rng: np.random.Generator) -> bytes:
    """Copy a piece to another place."""
    start, place = (int(v) for v in rng.integers(0, len(data), 2))
    piece = data[start : start + int(rng.integers(1, 200))]
    return data[:place] + piece + data[place + (len(piece) if rng.integers(2) else 0) :]


def _zero(data: bytes, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(data)))
    size = min(int(rng.integers(1, 300)), len(data) - start)
    return data[:start] + bytes(size) + data[start + size :]


BYTES = (_flip_bits, _flip_bits_in_front, _truncate, _splice, _zero)

# -- corruptions of what the bytes say ---------------------------------------------------------

Edit = Callable[[onnx.GraphProto, np.random.Generator], None]


def _any_node(graph: onnx.GraphProto, rng: np.random.Generator) -> onnx.NodeProto:
    return graph.node[int(rng.integers(len(graph.node)))]


def _any_initializer(graph: onnx.GraphProto, rng: np.random.Generator) -> onnx.TensorProto:
    return graph.initializer[int(rng.integers(len(graph.initializer)))]


def _wrong_dims(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    tensor = _any_initializer(graph, rng)
    if len(tensor.dims):
        i = int(rng.integers(len(tensor.dims)))
        tensor.dims[i] = int(rng.choice([0, 1, tensor.dims[i] + 1, 2 * tensor.dims[i], 2**31, 2**40, 2**62]))


def _other_rank(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    tensor = _any_initializer(graph, rng)
    dims = list(tensor.dims)
    del tensor.dims[:]
    tensor.dims.extend([*dims, 1] if rng.integers(2) else [int(np.prod(dims))])


def _negative_dims(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    tensor = _any_initializer(graph, rng)
    if len(tensor.dims):
        tensor.dims[int(rng.integers(len(tensor.dims)))] *= -1


def _wrong_type(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    _any_initializer(graph, rng).data_type = int(rng.choice([0, 2, 6, 7, 8, 9, 10, 11, 16, 22, 99]))


def _no_data(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    _any_initializer(graph, rng).ClearField("raw_data")


def _dangling(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    node = _any_node(graph, rng)
    node.input[int(rng.integers(len(node.input)))] = "nowhere"


def _missing_input(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    node = _any_node(graph, rng)
    if rng.integers(2):
        node.input.pop()
    else:
        node.input[int(rng.integers(len(node.input)))] = ""


def _extra_input(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    node = _any_node(graph, rng)
    node.input.extend([node.input[0]] * int(rng.integers(1, 4)))


def _no_inputs_at_all(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    del _any_node(graph, rng).input[:]


def _no_outputs_at_all(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    del _any_node(graph, rng).output[:]


def _empty_outputs(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    node = _any_node(graph, rng)
    node.output[0] = ""


def _cycle(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    node = _any_node(graph, rng)
    node.input[0] = graph.node[-1].output[0] if rng.integers(2) else node.output[0]


def _reversed(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.node]
    del graph.node[:]
    graph.node.extend(nodes[::-1])


def _same_output_twice(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    _any_node(graph, rng).output[0] = _any_node(graph, rng).output[0]


def _same_initializer_twice(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    _any_initializer(graph, rng).name = _any_initializer(graph, rng).name


def _initializer_as_output(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    _any_initializer(graph, rng).name = _any_node(graph, rng).output[0]


def _unnamed_initializer(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    _any_initializer(graph, rng).name = ""


def _other_operator(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    node = _any_node(graph, rng)
    node.op_type = str(rng.choice(["Conv", "Gemm", "MatMul", "Reshape", "Transpose", "Concat", "Split", "Gather", "",
                                   "Pad", "NoSuchOperator", "Slice", "LSTM", "BatchNormalization", "If"]))  # fmt: skip


def _other_domain(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    _any_node(graph, rng).domain = str(rng.choice(["com.microsoft", "no.such.domain"]))


def _odd_attribute(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    node = _any_node(graph, rng)
    if not node.attribute:
        node.attribute.append(helper.make_attribute("axis", 99))
        return
    attr = node.attribute[int(rng.integers(len(node.attribute)))]
    kind = int(rng.integers(5))
    if kind == 0:
        attr.CopyFrom(helper.make_attribute(attr.name, "text"))
    elif kind == 1:
        attr.CopyFrom(helper.make_attribute(attr.name, int(rng.choice([-1, 0, 3, 99, 2**62]))))
    elif kind == 2:
        attr.CopyFrom(helper.make_attribute(attr.name, [int(v) for v in rng.integers(-3, 9, 3)]))
    elif kind == 3:
        attr.type = int(rng.integers(0, 12))
    else:
        attr.name = "nonsense"


def _odd_input_type(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    value = [*graph.input, *graph.output][int(rng.integers(len(graph.input) + len(graph.output)))]
    kind = int(rng.integers(4))
    if kind == 0:
        value.ClearField("type")
    elif kind == 1:
        value.type.tensor_type.elem_type = int(rng.choice([0, 7, 8, 99]))
    elif kind == 2:
        value.type.tensor_type.shape.dim[-1].dim_value = int(rng.choice([-3, 0, 1, 2**40]))
    else:
        value.type.tensor_type.ClearField("shape")


def _no_graph_inputs(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    del graph.input[:]


def _odd_output(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    graph.output[0].name = str(rng.choice(["", "nowhere", graph.input[0].name, graph.initializer[0].name]))


def _odd_numbers(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    """Shapes, axes, bounds that make no sense."""
    integers = [t for t in graph.initializer if t.data_type == TensorProto.INT64]
    for tensor in integers:
        size = int(np.prod(tensor.dims))
        tensor.raw_data = rng.choice([-9, -1, 0, 1, 7, 2**40], size).astype(np.int64).tobytes()


def _not_numbers(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    """NaN and infinity in a weight."""
    floats = [t for t in graph.initializer if t.data_type == TensorProto.FLOAT]
    tensor = floats[int(rng.integers(len(floats)))]
    values = np.frombuffer(tensor.raw_data, np.float32).copy()
    values[int(rng.integers(len(values)))] = rng.choice([np.nan, np.inf, -np.inf, 3e38])
    tensor.raw_data = values.tobytes()


EDITS: tuple[Edit, ...] = (
    _wrong_dims, _other_rank, _negative_dims, _wrong_type, _no_data, _dangling, _missing_input, _extra_input,
    _no_inputs_at_all, _no_outputs_at_all, _empty_outputs, _cycle, _reversed, _same_output_twice,
    _same_initializer_twice, _initializer_as_output, _unnamed_initializer, _other_operator, _other_domain,
    _odd_attribute, _odd_input_type, _no_graph_inputs, _odd_output, _odd_numbers, _not_numbers,
)  # fmt: skip

# -- corruptions of external data --------------------------------------------------------------


def _corrupt_external(path: Path, rng: np.random.Generator) -> None:
    data = path.with_name(path.name + ".data")
    kind = int(rng.integers(6))
    if kind == 0:
        data.unlink()
    elif kind == 1:
        data.write_bytes(data.read_bytes()[: int(rng.integers(data.stat().st_size))])
    else:
        model = onnx.load(str(path), load_external_data=False)
        outside = [t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
        tensor = outside[int(rng.integers(len(outside)))]
        if kind == 2:
            tensor.dims[0] = int(rng.choice([-1, 0, tensor.dims[0] + 1, 2**40]))
        elif kind == 3:
            tensor.data_type = int(rng.choice([0, 8, 11, 99]))
        else:
            entry = tensor.external_data[int(rng.integers(len(tensor.external_data)))]
            entry.value = str(rng.choice(["", "..", "/etc/passwd", "-5", "abc", "99999999999", "nothing.bin"]))
        path.write_bytes(model.SerializeToString())


def _write(folder: Path, seed: int) -> tuple[Path, str]:
    """Write a corrupted model; return its path and what was done to it."""
    rng = np.random.default_rng([seed, 23])
    name, build = MODELS[seed % len(MODELS)]
    model, path = build(), folder / "in.onnx"
    kind = seed % 5
    if kind == 0:
        what = BYTES[int(rng.integers(len(BYTES)))]
        path.write_bytes(what(model.SerializeToString(), rng))
        return path, f"{name} {what.__name__}"
    if kind == 1:
        onnx.save_model(model, str(path), save_as_external_data=True, location="in.onnx.data", size_threshold=64)
        if rng.integers(4):
            _corrupt_external(path, rng)
            return path, f"{name} external"
        what = BYTES[int(rng.integers(len(BYTES)))]
        path.write_bytes(what(path.read_bytes(), rng))
        return path, f"{name} external {what.__name__}"
    edit = EDITS[(seed // 5 * 3 + kind) % len(EDITS)]
    edit(model.graph, rng)
    path.write_bytes(model.SerializeToString())
    return path, f"{name} {edit.__name__}"


def attempt(folder: Path, seed: int) -> tuple[str, str]:
    """Fold a corrupted file; return what was done to it and '' or what is wrong with the outcome."""
    path, what = _write(folder, seed)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    out = folder / "out.onnx"
    args = [
        "fold",
        str(path),
        str(out),
        "--channel-ratio",
        "0.5",
        "--inputs",
        "dead-leaves",
        "--samples",
        "8",
        "--report",
        str(folder / "report.json"),
    ]
    error: str | None = None
    try:
        with time_limit(LIMIT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cli.main(args, standalone_mode=False)
    except OnnxFoldError as raised:
        error = str(raised)
    except Exception as raised:  # anything else is a finding
        return what, f"{type(raised).__name__}: {' '.join(str(raised).split())[:200]}"
    after = {p.name: p.read_bytes() for p in folder.iterdir()}
    if {n: after.get(n) for n in before} != before:
        return what, "the input was modified"
    extra = sorted(set(after) - set(before))
    if error is not None:
        if extra:
            return what, f"{extra} left behind after: {error}"
        return what, "" if error and "\n" not in error else f"not one line: {error!r}"
    if extra != ["out.onnx", "report.json"]:
        return what, f"wrote {extra}"
    return what, _why_bad(path, out)


def _why_bad(path: Path, out: Path) -> str:
    """A result must load; where the input passed onnx's check, so must the result."""
    onnx.load(str(out))
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception:  # the checker raises many types
        return ""
    try:
        onnx.checker.check_model(str(out), full_check=True)
    except Exception as error:
        return f"the result is invalid: {' '.join(str(error).split())[:200]}"
    return ""


@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, CHUNK))
def test_corrupted_files(first: int, tmp_path: Path) -> None:
    found = {}
    for seed in range(first, first + CHUNK):
        folder = tmp_path / str(seed)
        folder.mkdir()
        what, wrong = attempt(folder, seed)
        if wrong:
            found[seed] = f"{what}: {wrong}"
    assert not found
