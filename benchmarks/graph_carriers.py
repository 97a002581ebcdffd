"""GraphView beside onnx-ir, an object model of ONNX graphs: ``python -m benchmarks.graph_carriers``.

Loads, walks, edits and saves three models with either, five times in processes of their own, and prints the least
seconds per step and the most memory beyond the imports. Needs ``pip install onnx-ir``, on which onnxfold does not
depend.

The walk asks every node for its operator, the writers and readers of its tensors, and the shapes of its outputs. The
edit turns every Relu into a LeakyRelu and doubles one weight in ten.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CARRIERS = ("GraphView", "onnx-ir")
STEPS = ("load", "walk", "edit", "save")
_NODES = 10_000
_RUNS = 5
_LAYERS, _WIDTH = 16, 4096


def main() -> None:
    """Print a table of all models and carriers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", nargs=3, metavar=("CARRIER", "MODEL", "FOLDER"), help="one run; used by itself")
    once = parser.parse_args().once
    if once:
        measure(once[0], Path(once[1]), Path(once[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        models = {
            f"{_NODES:,} nodes": write_chain(Path(folder) / "chain.onnx"),
            "bundled, LeNet-5": Path(__file__).parents[1] / "onnxfold" / "data" / "lenet5.onnx",
            "1 GiB of external weights": write_large(Path(folder) / "large.onnx"),
        }
        print(f"| model | carrier | {' | '.join(f'{step} (s)' for step in STEPS)} | memory (MiB) |")
        print(f"|---|---|{'---|' * (len(STEPS) + 1)}")
        for name, path in models.items():
            for carrier in CARRIERS:
                command = [sys.executable, "-m", "benchmarks.graph_carriers", "--once", carrier, str(path), folder]
                runs = [json.loads(subprocess.check_output(command)) for _ in range(_RUNS)]
                cells = " | ".join(f"{min(seconds[step] for seconds, _ in runs):.3f}" for step in STEPS)
                mebibytes = max(memory for _, memory in runs)
                print(f"| {name} | {carrier} | {cells} | {mebibytes:.0f} |")


def write_chain(path: Path) -> Path:
    """Write a chain of Mul, by weights of their own, and Relu."""
    nodes, weights, last = [], [], "x"
    for i in range(_NODES // 2):
        weights.append(numpy_helper.from_array(np.full(8, 1.0, np.float32), f"w{i}"))
        nodes.append(helper.make_node("Mul", [last, f"w{i}"], [f"m{i}"], f"mul_{i}"))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"r{i}"], f"relu_{i}"))
        last = f"r{i}"
    return _write(path, nodes, weights, last, 8)


def write_large(path: Path) -> Path:
    """Write matrices of 64 MiB beside the model."""
    nodes, weights, last = [], [], "x"
    for i in range(_LAYERS):
        matrix = np.random.default_rng(i).standard_normal((_WIDTH, _WIDTH), np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], f"matmul_{i}"))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"r{i}"], f"relu_{i}"))
        last = f"r{i}"
    return _write(path, nodes, weights, last, _WIDTH, save_as_external_data=True, location=f"{path.name}.data")


def _write(
    path: Path, nodes: list[onnx.NodeProto], weights: list[TensorProto], last: str, width: int, **how: object
) -> Path:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", width]) for n in ("x", last)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path, **how)
    return path


class Clock:
    """Seconds per step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure what is done inside."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def run_graph_view(path: Path, target: Path, clock: Clock) -> None:
    """Do the work with onnxfold's own view."""
    from onnxfold.graph.files.load import load
    from onnxfold.graph.files.save import save

    with clock.step("load"):
        view = load(path)
    with clock.step("walk"):
        seen = 0
        for node in view.nodes:
            writers = [view.producer(name) for name in node.input]
            readers = [view.consumers(name) for name in node.output]
            shapes = [view.shape(name) for name in node.output]
            seen += len(writers) + len(readers) + len(shapes) + len(node.op_type)
    with clock.step("edit"):
        relus = [n for n in view.nodes if n.op_type == "Relu"]
        view.substitute({n.output[0]: helper.make_node("LeakyRelu", n.input, n.output, n.name) for n in relus})
        for name in list(view.weights)[::10]:
            view.set_weight(name, view.weight(name) * 2)
    with clock.step("save"):
        save(view, target, external_data=path.stat().st_size < 1 << 20 and path.with_name(f"{path.name}.data").exists())


def run_onnx_ir(path: Path, target: Path, clock: Clock) -> None:
    """Do the work with onnx-ir."""
    import onnx_ir as ir
    from onnx_ir.passes.common import ShapeInferencePass

    with clock.step("load"):
        model = ir.load(path)
    with clock.step("walk"):
        ShapeInferencePass()(model)
        seen = 0
        for node in model.graph:
            writers = [value.producer() for value in node.inputs if value is not None]
            readers = [value.uses() for value in node.outputs]
            shapes = [value.shape for value in node.outputs]
            seen += len(writers) + len(readers) + len(shapes) + len(node.op_type)
    with clock.step("edit"):
        for node in list(model.graph):
            if node.op_type == "Relu":
                made = ir.node("LeakyRelu", node.inputs, name=node.name)
                ir.convenience.replace_nodes_and_values(model.graph, node, [node], [made], node.outputs, made.outputs)
        for value in list(model.graph.initializers.values())[::10]:
            value.const_value = ir.tensor(value.const_value.numpy() * 2, name=value.name)
    with clock.step("save"):
        external = path.with_name(f"{path.name}.data").exists()
        ir.save(model, target, external_data=f"{target.name}.data" if external else None)
        for written in target.parent.glob(f"{target.name}*"):  # GraphView's files are on the disk, too
            with written.open("rb") as file:
                os.fsync(file.fileno())


def measure(carrier: str, path: Path, folder: Path) -> None:
    """Print seconds per step, and MiB beyond the imports, as JSON."""
    run = run_graph_view if carrier == "GraphView" else run_onnx_ir
    run(_tiny(folder), folder / "tiny_out.onnx", Clock())  # imports, and what is made once
    for old in folder.glob("out.onnx*"):
        old.unlink()
    before = _peak_kib()
    clock = Clock()
    run(path, folder / "out.onnx", clock)
    print(json.dumps([clock.seconds, (_peak_kib() - before) / 1024]))


def _peak_kib() -> int:
    """Return the most memory that this process has had; Linux only."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _tiny(folder: Path) -> Path:
    weight = numpy_helper.from_array(np.ones(8, np.float32), "w")
    return _write(folder / "tiny.onnx", [helper.make_node("Mul", ["x", "w"], ["y"])], [weight], "y", 8)


if __name__ == "__main__":
    main()
