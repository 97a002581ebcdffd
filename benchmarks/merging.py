"""Accuracy of merged networks: plain means, weight matching, ZipIt!, model folding and onnxfold's own, by width.

Usage: python -m benchmarks.merging --data DIR --models DIR [--json FILE] [--page FILE] [--pair GLOB] [--row GLOB]
           [--widths W ...] [--images N]

DIR with data is what ``python -m benchmarks.datasets.fetch_cifar10`` writes; networks are those of ``python -m
benchmarks.training.cifar10``: two or three with the same classes and other seeds (``_s1``, ``_s2``), whose outputs are
averaged, or two with five classes each (``_c0-4``, ``_c5-9``), whose outputs are joined. Rows that are in the JSON file
already are not measured again, so that they can be measured one by one.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import onnxfold
from benchmarks.datasets import cifar10
from onnxfold.channels import find_groups
from onnxfold.channels.group import put_rows_of, rows_of
from onnxfold.cluster.clusterings.weight_matching import Partners, match_weights, partners_by_place
from onnxfold.config import FoldConfig
from onnxfold.folding.methods import find_method
from onnxfold.folding.networks.joined_model import JoinedModel, join_models, joined_inputs
from onnxfold.folding.open_model import Scope
from onnxfold.graph.files.save import to_model
from onnxfold.graph.tensors import Array
from onnxfold.progress import silent

HERE = Path(__file__).parent
WIDTHS = (1.0, 1.25, 1.5)
CALIBRATION = 512
BATCH = 500
CLASSES = 10
MIXES = (0.0, 0.25, 0.5, 0.75, 1.0)
ENSEMBLE = "the networks themselves"
INPUTS = "inputs, generated once for all rows"
#: The same on any machine at any time; a merge plans steps by their cost, and looks at the clock.
STEPS = (30,)


@dataclass(frozen=True)
class Row:
    """One way to merge.

    Parameters
    ----------
    name : str
        What the page calls it.
    options : dict
        Options of :func:`onnxfold.merge`.
    data : bool
        Whether it is shown training images.
    """

    name: str
    options: dict[str, Any]
    data: bool = False

    @property
    def generates(self) -> bool:
        """Whether it runs the networks on generated inputs."""
        return not self.data and self.options.get("repair", "least-squares") == "least-squares"


ROWS = (
    Row("plain mean", {"cluster": "by-place", "repair": "none"}),
    Row("plain mean, REPAIR", {"cluster": "by-place", "repair": "recalibrate"}, data=True),
    Row("weight matching", {"cluster": "matching", "repair": "none"}),
    Row("weight matching, Fold-AR", {"cluster": "matching", "repair": "approximate"}),
    Row("weight matching, REPAIR", {"cluster": "matching", "repair": "recalibrate"}, data=True),
    Row("ZipIt!, REPAIR", {"cluster": "zip", "repair": "recalibrate"}, data=True),
    Row("model folding, Fold-AR", {"cluster": "kmeans", "repair": "approximate"}),
    Row("model folding, REPAIR", {"cluster": "kmeans", "repair": "recalibrate"}, data=True),
    Row("weight matching, least squares", {"cluster": "matching", "repair": "least-squares"}),
    Row("ZipIt!, least squares", {"cluster": "zip", "repair": "least-squares"}),
    Row("elimination, least squares (the default)", {}),
    Row("elimination, least squares, data", {}, data=True),
)


@dataclass(frozen=True)
class Pair:
    """Two networks, or three.

    Parameters
    ----------
    name : str
        What the page calls them.
    paths : tuple of Path
        Their files.
    heads : {'join', 'average'}
        What becomes of their outputs.
    """

    name: str
    paths: tuple[Path, ...]
    heads: str


def find_pairs(models: Path) -> list[Pair]:
    """Return the pairs in a folder of trained networks."""
    found = []
    for first in sorted(models.glob("*_c0-4_cifar10_bn.onnx")):
        other = list(models.glob(first.name.replace("_c0-4_", "*_c5-9_")))
        if other:
            found.append(Pair(f"{first.name.split('_c0-4')[0]}, 5+5", (first, other[0]), "join"))
    seeds: dict[str, list[Path]] = {}
    for path in sorted(models.glob("*_cifar10_bn.onnx")):
        if "_c" not in path.name.removesuffix("_cifar10_bn.onnx").replace("_cifar10", ""):
            seeds.setdefault(path.name.split("_s")[0].removesuffix("_cifar10_bn.onnx"), []).append(path)
    for count, words in ((2, ""), (3, ", three networks")):
        found += [
            Pair(f"{name}, same classes{words}", tuple(p[:count]), "average")
            for name, p in seeds.items()
            if len(p) >= count
        ]
    return found


def logits_of(model: onnx.ModelProto, images: Array) -> Array:
    """Return the first output for all images."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: images[i : i + BATCH]})[0] for i in range(0, len(images), BATCH)])


def scores(model: onnx.ModelProto, heads: str, images: Array, labels: Array) -> dict[str, Any]:
    """Return the joint accuracy, and of joined heads that of every half among its own classes."""
    logits = logits_of(model, images)
    result: dict[str, Any] = {"joint": round(float((logits.argmax(1) == labels).mean()), 4)}
    if heads == "join":
        half = logits.shape[1] // 2
        parts = (slice(0, half), slice(half, None))
        own = [(labels >= p.start) & (labels < (p.stop or logits.shape[1])) for p in parts]
        result["tasks"] = [
            round(float((logits[mine][:, p].argmax(1) + p.start == labels[mine]).sum() / max(mine.sum(), 1)), 4)
            for mine, p in zip(own, parts, strict=True)
        ]
    return result


def load_test(data: Path, count: int) -> tuple[Array, Array]:
    """Return the first test images, normalised, and their labels."""
    images, labels = cifar10.load_test(data)
    return images[:count], labels[:count]


def generate_inputs(pair: Pair) -> dict[str, Any]:
    """Generate what the rows without data run the networks on, keep it for them, and return what it takes."""
    start = time.process_time()
    joined = join_models(list(pair.paths), pair.heads)
    config = FoldConfig(input_steps=STEPS, cache=_kept(pair))
    joined_inputs(joined, config, find_method(config.method, of_networks=True), silent)
    return {"pair": pair.name, "row": INPUTS, "cpu_seconds": round(time.process_time() - start, 1)}


def _kept(pair: Pair) -> Path:
    return pair.paths[0].parent / "inputs"


def measure(pair: Pair, row: Row, width: float, data: Path, count: int) -> dict[str, Any]:
    """Merge a pair, and return what it scores."""
    images, labels = load_test(data, count)
    options = dict(row.options)
    if row.data:
        shown, _ = cifar10.load_train_first5k(data)
        options["calibration"] = {_input_name(pair.paths[0]): shown[:CALIBRATION]}
    elif row.generates:
        options["input_steps"] = STEPS
    start, cpu = time.perf_counter(), time.process_time()
    result = onnxfold.merge(list(pair.paths), width, heads=pair.heads, verify=False, cache=_kept(pair), **options)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    record = {"pair": pair.name, "row": row.name, "width": width, "data": row.data, "images": len(images)}
    record |= scores(result.model, pair.heads, images, labels)
    return record | {
        "weights": result.report.after.parameters, "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)
    }  # fmt: skip


def ensemble(pair: Pair, data: Path, count: int) -> dict[str, Any]:
    """Return what the networks score beside each other: the bound."""
    images, labels = load_test(data, count)
    result = onnxfold.merge(list(pair.paths), float(len(pair.paths)), heads=pair.heads, verify=False, cache=None)
    record = {"pair": pair.name, "row": ENSEMBLE, "width": float(len(pair.paths)), "data": False, "images": len(images)}
    return record | scores(result.model, pair.heads, images, labels) | {"weights": result.report.after.parameters}


def _input_name(path: Path) -> str:
    return str(onnx.load(str(path), load_external_data=False).graph.input[0].name)


def _partners(joined: JoinedModel, *, matched: bool) -> tuple[list[Any], list[Partners]]:
    """Return the groups of networks beside each other, and which channels stand for each other."""
    analysis = find_groups(joined.graph.view)
    sources = joined.sources_of(Scope(joined.graph.view, analysis, [], {}))
    pairs = match_weights if matched else partners_by_place
    return analysis.groups, pairs(joined.graph.view, analysis.groups, sources)


def interpolated(pair: Pair, mix: float, *, matched: bool) -> onnx.ModelProto:
    """Return the network whose weights lie between those of two of one width, `mix` of the way to the second.

    With `matched`, the channels of the second are brought into the order of their partners first.
    """
    joined = join_models(list(pair.paths), pair.heads)
    _, partners = _partners(joined, matched=matched)
    first, second = (network.view.copy() for network in joined.networks)
    names = joined.matches[1].tensors
    groups = [network.analysis.groups for network in joined.networks]
    for mine, theirs, found in zip(*groups, partners, strict=True):
        order = np.argsort(found.unit[mine.size :])  # the place of every partner
        for member in theirs.members:
            put_rows_of(second, member, rows_of(second, member)[order])
    for name in first.float_weight_names():
        mean = (1.0 - mix) * first.weight(name).astype(np.float64) + mix * second.weight(names[name])
        first.set_weight(name, mean)
    return to_model(first)


def curve(pair: Pair, data: Path, count: int, *, matched: bool) -> Iterator[dict[str, Any]]:
    """Yield the accuracies on the way from one network to the other."""
    images, labels = load_test(data, count)
    for mix in MIXES:
        accuracy = float((logits_of(interpolated(pair, mix, matched=matched), images).argmax(1) == labels).mean())
        yield {"pair": pair.name, "mix": mix, "matched": matched, "joint": round(accuracy, 4)}


def page(records: list[dict[str, Any]]) -> str:
    """Return the page: a table per pair, and the curves."""
    lines = [(HERE / "merging_head.md").read_text(encoding="utf-8").rstrip()]
    for name in dict.fromkeys(r["pair"] for r in records):
        mine = [r for r in records if r["pair"] == name and "width" in r]
        generated = next((r["cpu_seconds"] for r in records if r["pair"] == name and r.get("row") == INPUTS), None)
        widths = sorted({r["width"] for r in mine if r["row"] != ENSEMBLE})
        images = mine[0].get("images", 10000)
        asides = [f"{images:,} test images"] + ([f"inputs: {generated:.0f} CPU s"] if generated is not None else [])
        lines += ["", f"## {name}", "", "; ".join(asides), ""]
        lines += ["| | data | " + " | ".join(f"width {w:g}" for w in widths) + " | CPU s |"]
        lines.append("|---|---|" + "---:|" * (len(widths) + 1))
        for row in dict.fromkeys(r["row"] for r in mine):
            found = {r["width"]: r for r in mine if r["row"] == row}
            one = next(iter(found.values()))
            if row == ENSEMBLE:
                lines.append(f"| {row}, width {one['width']:g}: the bound | | {_shown(one)} |" + " |" * len(widths))
                continue
            cells = [_shown(found[w]) if w in found else "" for w in widths]
            cost = next((f"{r['cpu_seconds']:.0f}" for r in found.values()), "")
            lines.append(f"| {row} | {'yes' if one['data'] else ''} | {' | '.join(cells)} | {cost} |")
        curves = [r for r in records if r["pair"] == name and "mix" in r]
        if curves:
            lines += ["", "| between the networks | " + " | ".join(f"{m:g}" for m in MIXES) + " |"]
            lines.append("|---|" + "---:|" * len(MIXES))
            for matched in (False, True):
                values = {r["mix"]: r["joint"] for r in curves if r["matched"] is matched}
                cells = [f"{values[m]:.1%}" if m in values else "" for m in MIXES]
                lines.append(f"| {'matched' if matched else 'as they are'} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shown(record: dict[str, Any]) -> str:
    joint = f"{100 * record['joint']:.1f}"
    return f"{joint} ({' / '.join(f'{100 * t:.1f}' for t in record['tasks'])})" if "tasks" in record else joint


def main() -> int:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--json", type=Path, default=HERE / "merging.json")
    parser.add_argument("--page", type=Path, default=HERE / "merging.md")
    parser.add_argument("--pair", default="*", help="glob of pairs")
    parser.add_argument("--row", default="*", help="glob of rows")
    parser.add_argument("--widths", type=float, nargs="*", default=WIDTHS)
    parser.add_argument("--images", type=int, default=10000, help="of the test split, from the front")
    args = parser.parse_args()
    records: list[dict[str, Any]] = json.loads(args.json.read_text()) if args.json.is_file() else []

    def keep(record: dict[str, Any]) -> None:
        records.append(record)
        args.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
        print(record, flush=True)

    for pair in find_pairs(args.models):
        if not fnmatchcase(pair.name, args.pair):
            continue
        known = {(r.get("row"), r.get("width")) for r in records if r["pair"] == pair.name}
        missing = [
            (row, width)
            for width in args.widths
            for row in ROWS
            if fnmatchcase(row.name, args.row) and (row.name, width) not in known
        ]
        if (ENSEMBLE, float(len(pair.paths))) not in known:
            keep(ensemble(pair, args.data, args.images))
        if (INPUTS, None) not in known and any(row.generates for row, _ in missing):
            keep(generate_inputs(pair))
        for row, width in missing:
            keep(measure(pair, row, width, args.data, args.images))
        if len(pair.paths) == 2 and pair.heads == "average" and fnmatchcase("curves", args.row):
            for matched in (False, True):
                if not any(r.get("matched") is matched for r in records if r["pair"] == pair.name):
                    for record in curve(pair, args.data, args.images, matched=matched):
                        keep(record)
    args.page.write_text(page(records), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
