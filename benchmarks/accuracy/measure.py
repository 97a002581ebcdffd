"""Measure one cell of the accuracy benchmark: fold, count, classify the test images."""

import pickle
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from benchmarks.accuracy.cells import PEERS, Cell
from benchmarks.accuracy.networks import Images, Labels, Network, input_of, test_images, train_images
from benchmarks.accuracy.store import Row, Store, input_fingerprint
from onnxfold import api
from onnxfold.config import FoldConfig
from onnxfold.errors import OnnxFoldError
from onnxfold.files import write
from onnxfold.folding.inputs.choose_inputs import ChosenInputs, prepare_inputs
from onnxfold.folding.methods import find_method

#: Training images for the methods that use data.
CALIBRATION_IMAGES = 256
_EVALUATION_BATCH = 250
_BISECTIONS = 14


class Stopwatch:
    """A progress callback that adds up the seconds between one word and the next."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._doing, self._since = "start", time.perf_counter()

    def __call__(self, text: str, _done: int = 0, _total: int = 0) -> None:
        """Charge the time since the last call to what was being done."""
        now = time.perf_counter()
        self.seconds[self._doing] = self.seconds.get(self._doing, 0.0) + now - self._since
        # Progress reports partitions one by one, with the group's name.
        self._doing = "partition" if text.startswith("partition ") else text
        self._since = now

    def phases(self) -> dict[str, float]:
        """Return seconds by phase, the last one until now."""
        self("")
        return {name: round(seconds, 3) for name, seconds in self.seconds.items() if seconds >= 0.001}


class Measurement:
    """Measures cells, and remembers what many of them need.

    Parameters
    ----------
    networks : list of Network
        All networks.
    data : Path
        The data sets.
    store : Store
        Where rows go.
    cache : Path
        Folder for generated inputs, which are the same for every fold of a network with one seed.
    """

    def __init__(self, networks: list[Network], data: Path, store: Store, cache: Path) -> None:
        self.networks = {n.name: n for n in networks}
        self.data, self.store, self.cache = data, store, cache
        cache.mkdir(parents=True, exist_ok=True)

    def cell(self, cell: Cell) -> Row:
        """Return the row of a cell; a refusal or a failure is a row with an `error`."""
        known = self.store.get("cells", cell.key)
        if known is not None:
            return known
        dense = self.dense(cell.network)
        row: Row = {**asdict(cell), "dense": dense["accuracy"], "dense_parameters": dense["parameters"]}
        empty = dict.fromkeys(
            ("removed", "parameters", "macs", "accuracy", "input_kind", "samples", "generation_s", "fold_s", "total_s")
        )
        try:
            measured = self._peer(cell, dense) if cell.method in PEERS else self._fold(cell)
            error = ""
        except OnnxFoldError as refusal:
            measured, error = {}, str(refusal)
        return self.store.add("cells", cell.key, {**row, **empty, **measured, "error": error})

    def dense(self, name: str) -> Row:
        """Return size and accuracy of the network itself."""
        known = self.store.get("dense", name)
        if known is not None:
            return known
        network = self.networks[name]
        size = api.measure(network.path)
        row = {"network": name, "accuracy": self.accuracy(onnx.load(network.path), network)}
        return self.store.add("dense", name, row | {"parameters": size.parameters, "macs": size.macs})

    def accuracy(self, model: onnx.ModelProto, network: Network) -> float:
        """Return the fraction of the test images that are classified right."""
        images, labels = test_images(self.data, network)
        return accuracy(model, images[: self.store.images], labels[: self.store.images])

    def options(self, cell: Cell) -> dict[str, Any]:
        """Return the options of a cell's fold."""
        network = self.networks[cell.network]
        options: dict[str, Any] = {"method": cell.method, "cluster": cell.cluster, "repair": cell.repair}
        options |= {"seed": cell.seed, "allocation": cell.allocation, "cache": None}
        if not cell.defaults:
            options |= {"objective": "weights", "round_to": 1}
        options["channel_ratio" if cell.channels else "sparsity"] = cell.sparsity
        if cell.last_stages:
            options["keep"] = early_groups(network, cell.last_stages)
        if cell.inputs != "data":
            return options | {"inputs": cell.inputs}
        name, _ = input_of(network)
        return options | {"calibration": {name: train_images(self.data, network, CALIBRATION_IMAGES)}}

    def _fold(self, cell: Cell) -> Row:
        network = self.networks[cell.network]
        config = FoldConfig(**self.options(cell))
        inputs, generation = self.shared_inputs(cell, config)
        watch, start = Stopwatch(), time.perf_counter()
        result = api.fold_request(network.path, config, watch, run_on=inputs)
        seconds = time.perf_counter() - start
        phases, report = watch.phases(), result.report
        return {
            "removed": report.sparsity,
            "parameters": report.after.parameters,
            "macs": report.after.macs,
            "accuracy": self.accuracy(result.model, network),
            "input_kind": report.inputs.kind if report.inputs is not None else "none",
            "samples": report.inputs.samples if report.inputs is not None else 0,
            "generation_s": round(generation, 2),
            "fold_s": round(seconds, 2),
            "total_s": round(generation + seconds, 2),
            "phases": phases,
            "passes": {p.name: round(p.seconds, 3) for p in report.passes if p.seconds >= 0.001},
            "widths": {g.name: [g.width, g.folded_width] for g in report.groups},
            "notes": report.notes,
        }

    def _peer(self, cell: Cell, dense: Row) -> Row:
        network = self.networks[cell.network]
        norm, pooled = PEERS[cell.method]
        start = time.perf_counter()
        model = prune_with_onnxsim(network.path, cell.sparsity, dense["parameters"], norm=norm, pooled=pooled)
        seconds = time.perf_counter() - start
        size = api.measure(model)
        return {
            "removed": 1.0 - size.parameters / dense["parameters"],
            "parameters": size.parameters,
            "macs": size.macs,
            "accuracy": self.accuracy(model, network),
            "input_kind": "none",
            "samples": 0,
            "generation_s": 0.0,
            "fold_s": round(seconds, 2),
            "total_s": round(seconds, 2),
        }

    def shared_inputs(self, cell: Cell, config: FoldConfig) -> tuple[ChosenInputs | None, float]:
        """Return the inputs of a fold and the seconds they took; None where it takes none."""
        method = find_method(cell.method, cluster=cell.cluster, repair=cell.repair)
        kind = cell.inputs if cell.inputs != "auto" else method.inputs
        needed = method.needs_inputs or (cell.allocation == "global" and not cell.channels)
        if not needed:
            return None, 0.0
        file = self.cache / f"{cell.network}_{kind}_{cell.seed}_{input_fingerprint()}.pickle"
        if not file.exists():
            start = time.perf_counter()
            chosen = prepare_inputs(self.networks[cell.network].path, config)
            write({file: pickle.dumps((chosen, time.perf_counter() - start))})
        inputs: tuple[ChosenInputs, float] = pickle.loads(file.read_bytes())
        return inputs


def accuracy(model: onnx.ModelProto, images: Images, labels: Labels) -> float:
    """Return the fraction of images whose largest logit is that of their class."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    right = 0
    for start in range(0, len(images), _EVALUATION_BATCH):
        part = slice(start, start + _EVALUATION_BATCH)
        right += int((session.run(None, {name: images[part]})[0].argmax(axis=1) == labels[part]).sum())
    return right / len(images)


def early_groups(network: Network, stages: int) -> list[str]:
    """Return the names of the groups before the last stages; a stage is all groups of one width."""
    groups = api.inspect(network.path)
    last = sorted({g.size for g in groups})[-stages:]
    return [g.name for g in groups if g.size not in last]


def prune_with_onnxsim(path: Path, sparsity: float, before: int, *, norm: str, pooled: bool) -> onnx.ModelProto:
    """Return the model that onnxsim prunes closest to a fraction of the weights; onnxsim takes one of channels."""
    import onnxsim

    low, high = 0.0, 1.0
    best: tuple[float, onnx.ModelProto] | None = None
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        model = onnxsim.apply_structured_pruning(
            str(path), sparsity=middle, importance_norm=norm, global_sparsity=pooled
        )
        removed = 1.0 - api.measure(model).parameters / before
        if best is None or abs(removed - sparsity) < best[0]:
            best = abs(removed - sparsity), model
        low, high = (middle, high) if removed < sparsity else (low, middle)
    assert best is not None
    return best[1]
