"""Folding a file over 2 GB: same result as in memory, bounded memory.

Usage: python -m benchmarks.large_model [--folder DIR] [--gigabytes 2.2] [--only table streamed inspect decoder]

The model looks tokens up in a table (random, over 2 GB, external data), normalises, and runs random MLP blocks.
Only the blocks can be folded. The same blocks without the table are folded in memory on the rows that the same tokens
look up, and the folded weights are compared bit by bit. The network is run for it, and verified.

A second model is nothing but large MatMul layers, all of which lose channels by `prune-l1`, which runs nothing: weights
are streamed from file to file. A third is as large as a transformer of 7 billion weights in float16; its data file is
only as long as that (nothing is written to it), and it is inspected.

A fourth has the shape of Llama-2-7B in float16, random, and a few of its layers (`--layers`, of widths that may be
divided by `--scale`). It is folded by `--method` on 4,096 drawn tokens as if all layers were there: edited weights wait
in a file, nothing runs as a whole. What a layer takes is the difference between two numbers of layers, of at least two,
as one layer's channels are chosen while the next one runs; what all 32 would take is extrapolated from it, and the page
says so.

Peak resident memory is that of a process of its own, as the kernel counts it. Exit code 1: it is above 1.5 GiB (and
three of the tensors that are cut, where layers are streamed), the weights are not equal, the inspection takes more
than 30 s, or the decoder more than 8 GiB. The page `benchmarks/large_model.md` keeps the rows of other parts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from benchmarks import seven_billion
from onnxfold.machine.threads import usable_cores

WIDTH, HIDDEN, BLOCKS = 512, 1024, 4
_TOKENS = 512
_LOAD = os.getloadavg()[0]
_PAGE = Path(__file__).with_suffix(".md")
_CHILD = """
import json, resource, sys, time, onnxfold.api
start = time.perf_counter()
result = onnxfold.fold(sys.argv[1], channel_ratio=0.5, calibration=sys.argv[3])
result.save(sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"peak_gib": peak / 2**20, "seconds": time.perf_counter() - start, "notes": result.report.notes}))
"""
_PRUNE = """
import json, resource, sys, time, onnxfold.api
start = time.perf_counter()
result = onnxfold.fold(sys.argv[1], channel_ratio=0.5, method="prune-l1", verify=False)
result.save(sys.argv[2], save_as_external_data=True)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"peak_gib": peak / 2**20, "seconds": time.perf_counter() - start}))
"""
_INSPECT = """
import json, resource, sys, time, onnxfold.api
start = time.perf_counter()
onnxfold.inspect(sys.argv[1])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"peak_gib": peak / 2**20, "seconds": time.perf_counter() - start}))
"""


_DECODER = """
import json, resource, sys, time, onnxfold.api
from onnxfold.fidelity import verify
from onnxfold.folding import open_model
from onnxfold.inputs import token_inputs
open_model._SCRATCH_PART = 1 << 50  # a few layers are treated as all of them are
verify.loaded_bytes = token_inputs.loaded_bytes = lambda view: 1 << 60
start = time.perf_counter()
result = onnxfold.fold(sys.argv[1], method=sys.argv[3], sparsity=0.2, max_memory="8G", verify=False, samples=16)
result.save(sys.argv[2], save_as_external_data=True)
usage = resource.getrusage(resource.RUSAGE_SELF)
seconds, cpu = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
print(json.dumps({"peak_gib": usage.ru_maxrss / 2**20, "seconds": seconds, "cpu": cpu}))
"""


class Part(NamedTuple):
    """What a part found: a row of the page, and whether it is within its bars."""

    what: str
    size: str
    time: str
    peak_gib: float
    fits: bool

    @property
    def key(self) -> str:
        """What was done, and to which file."""
        return f" {self.what} | {self.size} "

    @property
    def row(self) -> str:
        """The row."""
        return f"| {self.what} | {self.size} | {self.time} | {self.peak_gib:.2f} GiB |"


def main() -> None:
    """Run every requested part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2.2)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--method", default="fold-ls")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=list(_PARTS))
    args = parser.parse_args()
    rows, fits = known_rows(), True
    for name in args.only:  # all of them, whatever the first one says
        for part in _PARTS[name](args):
            fits &= part.fits
            rows[part.key] = part.row
            print(part.row, "" if part.fits else "FAILED", flush=True)
    _PAGE.write_text(page(list(rows.values())), encoding="utf-8")
    sys.exit(not fits)


def known_rows() -> dict[str, str]:
    """Return the rows of the page as it is, by what was done to which file."""
    lines = _PAGE.read_text(encoding="utf-8").splitlines() if _PAGE.exists() else []
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| what")]
    return {"|".join(line.split("|")[1:3]): line for line in rows}


def page(rows: list[str]) -> str:
    """Return the page."""
    shared = " shared with other jobs" if _LOAD > 1 else ""
    return "\n".join([
        "# Large models", "",
        "Time on the clock and, where it says so, of the CPU, and peak resident memory of the process. Written by "
        "`python -m benchmarks.large_model` on "
        f"{datetime.now(UTC):%Y-%m-%d} with {usable_cores()} threads{shared} (load average {_LOAD:.1f} when it began); "
        "rows of parts that were not run then are those of earlier runs.", "",
        "| what | file | time | peak |", "|---|---|---:|---:|", *rows, "",
    ])  # fmt: skip


def table(args: argparse.Namespace) -> Iterator[Part]:
    """Generate, fold both, compare."""
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        path = write_large(folder, args.gigabytes)
        size = sum(f.stat().st_size for f in folder.iterdir()) / 1e9
        rows = (folder / "table.bin").stat().st_size // (4 * WIDTH)
        ids = np.random.default_rng(2).integers(0, rows, _TOKENS)
        np.savez(folder / "ids.npz", ids=ids)
        outcome = _in_a_process(_CHILD, path, folder / "out.onnx", folder / "ids.npz")
        looked_up = np.memmap(folder / "table.bin", np.float32, "r", shape=(rows, WIDTH))[ids]
        reference = onnxfold.fold(blocks_model(), channel_ratio=0.5, calibration={"x": looked_up})
        equal = same_blocks(folder / "out.onnx", reference.model)
    what = f"`fold-ls`, {_TOKENS} tokens, verified; folded blocks {'equal to' if equal else 'NOT as'} those in memory"
    fits = equal and outcome["peak_gib"] <= 1.5
    yield Part(what, f"{size:.2f} GB, most of it one table", _time(outcome), outcome["peak_gib"], fits)


def streamed(args: argparse.Namespace) -> Iterator[Part]:
    """Remove half of all channels of a model of large layers, without running it."""
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        path = write_layers(
            Path(name), width=4096, hidden=16384, blocks=round(args.gigabytes * 1e9 / (8 * 4096 * 16384))
        )
        size, largest = (Path(name) / "layers.bin").stat().st_size, 4 * 4096 * 16384
        outcome = _in_a_process(_PRUNE, path, Path(name) / "out.onnx")
    fits = outcome["peak_gib"] <= 1.5 + 3 * largest / 2**30
    shown = f"{size / 1e9:.2f} GB, tensors of {largest / 2**30:.2f} GiB"
    yield Part("`prune-l1 --no-verify`", shown, _time(outcome), outcome["peak_gib"], fits)


def inspected(args: argparse.Namespace) -> Iterator[Part]:
    """Inspect a model of 7 billion weights of which only the length exists."""
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        path = write_layers(Path(name), width=4096, hidden=11008, blocks=78, sparse=True)
        size = (Path(name) / "layers.bin").stat().st_size
        outcome = _in_a_process(_INSPECT, path)
    shown = f"{size / 1e9:.1f} GB in float16, sparse on disk"
    yield Part("`inspect`", shown, _time(outcome), outcome["peak_gib"], outcome["seconds"] <= 30.0)


def decoder(args: argparse.Namespace) -> Iterator[Part]:
    """Fold a few layers of a decoder of the shape of Llama-2-7B, as if they were all of them."""
    widths = f"{seven_billion.WIDTH // args.scale:,} and {seven_billion.INNER // args.scale:,} wide"
    how, outcomes = f"`{args.method} --no-verify`, 4,096 tokens, {widths}", {}
    for layers in args.layers:
        with tempfile.TemporaryDirectory(dir=args.folder) as name:
            path = seven_billion.write_decoder(Path(name), layers, args.scale)
            size = (Path(name) / "model.onnx.data").stat().st_size
            outcome = outcomes[layers] = _in_a_process(_DECODER, path, Path(name) / "out.onnx", Path(args.method))
        what, peak = f"{how}: {layers} of {seven_billion.LAYERS} layers", outcome["peak_gib"]
        time = f"{_time(outcome)}, of CPU {outcome['cpu']:.0f} s"
        yield Part(what, f"{size / 1e9:.2f} GB in float16", time, peak, peak <= 8.0)
    if len(outcomes) > 1:
        yield extrapolated(how, outcomes)


def extrapolated(how: str, outcomes: dict[int, dict[str, Any]]) -> Part:
    """Return what all layers would take if each took what the last ones that were folded did."""
    few, many = min(outcomes), max(outcomes)

    def at_all(quantity: str) -> tuple[float, float]:
        each = (outcomes[many][quantity] - outcomes[few][quantity]) / (many - few)
        return each, outcomes[many][quantity] + each * (seven_billion.LAYERS - many)

    (each, cpu), (_, peak) = at_all("cpu"), at_all("peak_gib")
    what = f"{how}: {seven_billion.LAYERS} layers, **extrapolated** from {few} and {many}"
    return Part(what, "not run", f"of CPU {each:.0f} s per layer, {cpu / 3600:.1f} h in all", peak, peak <= 8.0)


def _time(outcome: dict[str, Any]) -> str:
    return f"{outcome['seconds']:.0f} s"


def _in_a_process(code: str, *arguments: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return cast(dict[str, Any], json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


def write_layers(folder: Path, *, width: int, hidden: int, blocks: int, sparse: bool = False) -> Path:
    """Write residual MLP blocks with external data, random float32, or float16 of which only the length exists."""
    dtype, elem_type = (np.float16, TensorProto.FLOAT16) if sparse else (np.float32, TensorProto.FLOAT)
    random = np.random.default_rng(0)
    tensors, nodes = [], []
    with (folder / "layers.bin").open("wb") as file:
        for i in range(blocks):
            for name, shape in ((f"up{i}", (width, hidden)), (f"down{i}", (hidden, width))):
                start, length = file.tell(), shape[0] * shape[1] * np.dtype(dtype).itemsize
                if sparse:
                    file.truncate(start + length)
                    file.seek(start + length)
                else:
                    for _ in range(0, shape[0], 1024):
                        part = random.standard_normal((1024, shape[1]), np.float32)
                        (part / np.float32(np.sqrt(shape[0]))).tofile(file)
                tensor = TensorProto(name=name, dims=shape, data_type=elem_type, data_location=TensorProto.EXTERNAL)
                for key, value in (("location", "layers.bin"), ("offset", start), ("length", length)):
                    tensor.external_data.add(key=key, value=str(value))
                tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"h{i}", f"up{i}"], [f"a{i}"], f"up{i}"))
            nodes.append(helper.make_node("Relu", [f"a{i}"], [f"r{i}"], f"relu{i}"))
            nodes.append(helper.make_node("MatMul", [f"r{i}", f"down{i}"], [f"d{i}"], f"down{i}"))
            nodes.append(helper.make_node("Add", [f"h{i}", f"d{i}"], [f"h{i + 1}"], f"add{i}"))
    x = helper.make_tensor_value_info("h0", elem_type, ["n", width])
    y = helper.make_tensor_value_info(f"h{blocks}", elem_type, ["n", width])
    graph = helper.make_graph(nodes, "layers", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "layers.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def write_large(folder: Path, gigabytes: float) -> Path:
    """Write the model with its table; return its path."""
    rows = int(gigabytes * 1e9 / (4 * WIDTH))
    model = blocks_model()
    random = np.random.default_rng(1)
    with (folder / "table.bin").open("wb") as file:
        for start in range(0, rows, 65536):
            random.standard_normal((min(65536, rows - start), WIDTH), np.float32).tofile(file)
    table = TensorProto(name="table", dims=[rows, WIDTH], data_type=TensorProto.FLOAT)
    table.data_location = TensorProto.EXTERNAL
    table.external_data.add(key="location", value="table.bin")
    model.graph.initializer.append(table)
    del model.graph.input[:]
    model.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"]))
    model.graph.node.insert(0, helper.make_node("Gather", ["table", "ids"], ["x"], "lookup"))
    path = folder / "large.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def blocks_model() -> onnx.ModelProto:
    """Return LayerNormalization and residual MLP blocks on x (n, WIDTH)."""
    random = np.random.default_rng(0)
    nodes, weights = [], []

    def weight(name: str, *shape: int) -> str:
        values = random.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0]))
        weights.append(numpy_helper.from_array(values, name))
        return name

    weights.append(numpy_helper.from_array(np.ones(WIDTH, np.float32), "scale"))
    nodes.append(helper.make_node("LayerNormalization", ["x", "scale"], ["h0"], "norm"))
    for i in range(BLOCKS):
        up, down = weight(f"up{i}", WIDTH, HIDDEN), weight(f"down{i}", HIDDEN, WIDTH)
        nodes.append(helper.make_node("MatMul", [f"h{i}", up], [f"a{i}"], f"up{i}"))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [f"r{i}"], f"relu{i}"))
        nodes.append(helper.make_node("MatMul", [f"r{i}", down], [f"d{i}"], f"down{i}"))
        nodes.append(helper.make_node("Add", [f"h{i}", f"d{i}"], [f"h{i + 1}" if i < BLOCKS - 1 else "y"], f"add{i}"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])
    graph = helper.make_graph(nodes, "blocks", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def same_blocks(path: Path, reference: onnx.ModelProto) -> bool:
    """Whether the folded weights in a file with external data are those of a model in memory."""
    large = onnx.load(str(path), load_external_data=False)
    found = {t.name: t for t in large.graph.initializer}
    for expected in reference.graph.initializer:
        tensor = found[expected.name]
        if tensor.data_location == TensorProto.EXTERNAL:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
        if not np.array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(expected)):
            return False
    return any(t.dims[0] == HIDDEN // 2 for t in reference.graph.initializer)


_PARTS = {"table": table, "streamed": streamed, "inspect": inspected, "decoder": decoder}

if __name__ == "__main__":
    main()
