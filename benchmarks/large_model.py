"""Folding a file over 2 GB: same result as in memory, bounded memory.

Usage: python -m benchmarks.large_model [--folder DIR] [--gigabytes 2.2]

The model looks tokens up in a table (random, over 2 GB, external data), normalises, and runs random MLP blocks.
Only the blocks can be folded. The same blocks without the table are folded in memory, and the folded weights are
compared bit by bit. Peak resident memory is that of a process of its own, as the kernel counts it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxfold

WIDTH, HIDDEN, BLOCKS = 512, 1024, 4
_CHILD = """
import json, resource, sys, onnxfold
result = onnxfold.fold(sys.argv[1], channel_ratio=0.5)
result.save(sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"peak_gib": peak / 2**20, "seconds": result.report.seconds, "notes": result.report.notes}))
"""


def main() -> None:
    """Generate, fold both, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2.2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        path = write_large(folder, args.gigabytes)
        size = sum(f.stat().st_size for f in folder.iterdir()) / 1e9
        start = time.perf_counter()
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, str(path), str(folder / "out.onnx")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        outcome = json.loads(child.stdout)
        equal = same_blocks(folder / "out.onnx", onnxfold.fold(blocks_model(), channel_ratio=0.5).model)
    print(
        f"file {size:.2f} GB, folded and saved in {seconds:.1f} s, peak resident memory {outcome['peak_gib']:.2f} GiB"
    )
    print(f"folded blocks equal to folding in memory: {equal}; notes: {outcome['notes']}")
    sys.exit(0 if equal and outcome["peak_gib"] <= 1.5 else 1)


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


if __name__ == "__main__":
    main()
