"""The accuracy benchmark's own arithmetic and book-keeping; nothing here folds."""

import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.accuracy import cells
from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.correlation import means
from benchmarks.accuracy.folded import channel_covariances
from benchmarks.accuracy.measure import Measurement, Stopwatch, accuracy
from benchmarks.accuracy.networks import Network, find_networks, parse_name
from benchmarks.accuracy.page import render
from benchmarks.accuracy.store import Row, Store, fingerprint, input_fingerprint
from benchmarks.accuracy.variance import ratio
from benchmarks.latency.timing import interleaved
from onnxfold.config import FoldConfig
from onnxfold.errors import ModelSaveError
from onnxfold.folding.methods import find_method
from onnxfold.graph.files.load import load


def network(name: str) -> Network:
    found = parse_name(Path(f"{name}.onnx"))
    assert found is not None
    return found


NETWORKS = [
    network(name)
    for name in (
        "resnet18_w32_cifar10_bn", "resnet18_w32_cifar10_fused", "resnet18_w32_fashion_bn", "mlp_w1_fashion_bn",
        "mlp_w2_fashion_bn", "vgg11_bn_w0.125_cifar10_bn", "vgg11_bn_w0.5_cifar10_bn",
        "vgg11_bn_w0.125_l1-0.0001_cifar10_bn",
    )
]  # fmt: skip


def row(cell: Cell, accuracy: float, dense: float = 0.9) -> Row:
    measured = {"removed": cell.sparsity, "accuracy": accuracy, "dense": dense, "dense_parameters": 1000, "error": ""}
    costs = {"input_kind": "none", "generation_s": 1.0, "fold_s": 2.0, "total_s": 3.0}
    return {**vars(cell), **measured, **costs}


def linear(weight: np.ndarray) -> onnx.ModelProto:
    """A network whose logits are the input times a matrix, after a Relu named 'hidden'."""
    nodes = [helper.make_node("Relu", ["x"], ["hidden"]), helper.make_node("MatMul", ["hidden", "w"], ["y"])]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g",
        [value("x", TensorProto.FLOAT, ["N", len(weight)])],
        [value("y", TensorProto.FLOAT, ["N", weight.shape[1]])],
        [numpy_helper.from_array(weight.astype(np.float32), "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_fingerprints_find_all_of_their_sources() -> None:
    """A pattern without a file raises."""
    assert fingerprint() != input_fingerprint()
    with pytest.raises(ValueError, match="holds no moved/"):
        fingerprint(["api.py", "moved/*.py"])


def test_names_say_what_a_network_is() -> None:
    found = network("vgg11_bn_w0.125_l1-0.0001_cifar10_fused")
    assert (found.family, found.width, found.penalty) == ("vgg11_bn", 0.125, "l1-0.0001")
    assert (found.dataset, found.form) == ("cifar10", "fused")


@pytest.mark.parametrize("name", ["resnet18_cifar10_bn", "resnet18_w32_imagenet_bn", "resnet18_w32_cifar10"])
def test_other_names_are_left_out(name: str) -> None:
    assert parse_name(Path(f"{name}.onnx")) is None


@pytest.mark.parametrize("section", cells.SECTIONS)
def test_sections_ask_for_valid_and_different_folds(section: str) -> None:
    asked = cells.SECTIONS[section](NETWORKS)
    assert asked
    assert len({cell.key for cell in asked}) == len(asked)
    names = {n.name for n in NETWORKS}
    for cell in asked:
        assert cell.network in names
        if cell.method not in cells.PEERS:
            find_method(cell.method, cluster=cell.cluster, repair=cell.repair)


def test_composed_names_methods_and_leaves_out_what_is_refused() -> None:
    assert cells.composed("kmeans", "approximate") == {"method": "fold-ar"}
    assert cells.composed("top-l1", "approximate") is None
    options = cells.composed("ward", "least-squares")
    assert options is not None
    method = find_method(**{"name" if k == "method" else k: v for k, v in options.items()})
    assert (method.cluster, method.repair) == ("ward", "least-squares")


def test_fused_targets_lie_below_those_of_their_twins() -> None:
    twins = {b.network: b.targets for b in cells.BARS if b.allocation == "global"}
    fused = twins["resnet18_w32_cifar10_fused"]
    assert fused == {0.25: 88.0, 0.5: 87.6, 0.7: 86.1}


def test_rows_survive_and_resume(tmp_path: Path) -> None:
    first, second = (Cell(network="a", sparsity=s) for s in (0.5, 0.7))
    store = Store(tmp_path, resume="", images=10)
    store.add("cells", first.key, row(first, 0.8))
    with pytest.raises(FileExistsError, match="--resume"):
        Store(tmp_path, resume="", images=10)
    resumed = Store(tmp_path, resume="same", images=10)
    assert resumed.get("cells", first.key) == store.get("cells", first.key)
    resumed.add("cells", second.key, row(second, 0.7))
    assert len((tmp_path / "accuracy.csv").read_text().splitlines()) == 3
    assert len(json.loads((tmp_path / "accuracy.json").read_text())["cells"]) == 2
    assert Store(tmp_path, resume="any", images=20).rows("cells") == []


def test_rows_of_other_code_are_measured_again(tmp_path: Path) -> None:
    cell = Cell(network="a", sparsity=0.5)
    store = Store(tmp_path, resume="", images=10)
    store.environment["code"] = "another"
    store.add("cells", cell.key, row(cell, 0.8))
    assert Store(tmp_path, resume="any", images=10).get("cells", cell.key) is not None
    assert Store(tmp_path, resume="same", images=10).get("cells", cell.key) is None


def test_page_tells_met_from_missed(tmp_path: Path) -> None:
    bar = next(b for b in cells.BARS if b.network == "resnet18_w32_cifar10_bn" and b.allocation == "uniform")
    store = Store(tmp_path, resume="", images=10)
    for sparsity, reached in ((0.5, 0.8651), (0.7, 0.81)):
        cell = bar.cell(sparsity)
        store.add("cells", cell.key, row(cell, reached))
    store.add("sections", "bars", {})
    other = bar.cell(0.5, seed=1)
    store.add("cells", other.key, row(other, 0.86))
    page = render(store, NETWORKS, tmp_path, [tmp_path / "figures" / "curves_a.png"])
    assert "1 of 2 targets are met. 21 of all 23 were not measured." in page
    assert "## Accuracy by sparsity" not in page
    assert "| 86.51 | met |" in page
    assert "| 81.00 | **1.50 below** |" in page
    assert "| 86.51 | 86.00 | 0.51 | **missed** |" in page


def test_page_checks_the_order_of_methods(tmp_path: Path) -> None:
    store = Store(tmp_path, resume="", images=10)
    reached = {"fold-naive": 0.5, "fold-ar": 0.7, "fold-dir": 0.69, "fold-r": 0.75}
    for method, value in reached.items():
        inputs = "data" if method == "fold-r" else "auto"
        cell = Cell(network="resnet18_w32_cifar10_bn", sparsity=0.5, method=method, inputs=inputs)
        store.add("cells", cell.key, row(cell, value))
    store.add("sections", "methods", {})
    page = render(store, NETWORKS, tmp_path, [])
    assert "naive < AR < DIR **does not hold**; DIR is 6.0 points from R (**not within** 3)" in page


def test_variance_ratio_counts_clustered_channels_that_live() -> None:
    dense = np.array([1.0, 4.0, 1e-12, 5.0])
    assert ratio(dense, np.array([2.0, 3.0]), np.array([0, 0, 1, -1])) == pytest.approx((2 / 1 + 2 / 4) / 2)


def test_channel_covariances_over_batches() -> None:
    images = np.random.default_rng(0).standard_normal((150, 3)).astype(np.float32)
    found = channel_covariances(load(linear(np.eye(3))), ["hidden", "y"], images)
    wanted = np.cov(np.maximum(images, 0).T, bias=True)
    np.testing.assert_allclose(found["hidden"], wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["y"], found["hidden"], rtol=1e-5)


def test_correlations_within_and_between_clusters() -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 4000))
    covariance = np.cov([a, 3 * a, b, -b, np.zeros(4000)])
    within, between, closest = means(covariance, np.array([0, 0, 1, 1, 2]))
    assert within == pytest.approx(0.0)  # of a with 3 a: 1, of b with -b: -1
    assert between == pytest.approx(0.0, abs=1e-9)  # with b and with -b
    assert closest == pytest.approx(0.5)  # 1, 1, that of a with b, that of a with -b
    assert means(covariance, np.array([0, 1, -1, -1, 2]))[1] == pytest.approx(1.0)
    assert np.isnan(means(covariance, np.array([0, 1, -1, -1, 2]))[0])


def test_accuracy_counts_every_image_once() -> None:
    images = np.eye(3, dtype=np.float32)[np.arange(600) % 3]
    labels = (np.arange(600) % 3).astype(np.uint8)
    labels[-60:] = 1 - labels[-60:] // 2  # the last ones: 0 -> 1, 1 -> 1, 2 -> 0
    assert accuracy(linear(np.eye(3)), images, labels) == pytest.approx((540 + 20) / 600)


def test_rows_without_options_keep_the_objective_that_their_targets_were_set_with(tmp_path: Path) -> None:
    """Rows at defaults are rows of their own; the names of all others are those of earlier runs."""
    plain, default = (Cell(network="lenet5", sparsity=0.5, method="prune-l1", defaults=d) for d in (False, True))
    assert default.key == f"{plain.key}|defaults=True"
    store = Store(tmp_path / "out", resume="", images=10)
    bench = Measurement(find_networks([]), tmp_path, store, tmp_path / "inputs")
    assert bench.options(plain) == bench.options(default) | {"objective": "weights", "round_to": 1}


def test_inputs_that_cannot_be_written_whole_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, resume="", images=1)
    bench = Measurement(find_networks([]), tmp_path, store, tmp_path / "inputs")
    cell = Cell(network="lenet5", sparsity=0.5, method="fold-dir", inputs="noise")

    def full_disk(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("benchmarks.accuracy.measure.prepare_inputs", lambda *_: "inputs")
    config = FoldConfig(method="fold-dir", inputs="noise")
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(ModelSaveError):
        bench.shared_inputs(cell, config)
    assert not list((tmp_path / "inputs").iterdir())
    monkeypatch.setattr(os, "fsync", fsync)
    assert bench.shared_inputs(cell, config)[0] == bench.shared_inputs(cell, config)[0] == "inputs"


def test_latency_has_a_time_per_round_and_model() -> None:
    times = interleaved([linear(np.eye(3)), linear(np.ones((3, 3)))], rounds=4).seconds
    assert times.shape == (4, 2)
    assert (times > 0).all()


def test_stopwatch_charges_what_was_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    watch = Stopwatch()
    watch("load")
    watch("partition a", 0, 2)
    watch("partition b", 1, 2)
    assert watch.phases() == {"start": 1.0, "load": 2.0, "partition": 7.0}


def test_main_networks_keep_the_widest_vgg() -> None:
    vgg = [n for n in cells.main_networks(NETWORKS) if n.family == "vgg11_bn"]
    assert vgg == [replace(vgg[0], width=0.5)]
