"""The Markdown page of the latency benchmark."""

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.latency.rows import LIMIT, ROUNDS
from onnxfold.files.cache import machine_kind

#: Goals of the defaults: least part of the gain in MACs that latency gains, most latency at half the weights.
_GAIN, _AT_HALF = 0.8, 0.70
#: The networks that the latter is asked of.
_HALVED = ("ResNet18", "VGG11", "MobileNetV2")
_TOLERANCE = 1.05


def render(networks: Sequence[dict[str, Any]], command: str) -> str:
    """Return the page of what :func:`benchmarks.latency.rows.measure_network` gave for some networks."""
    processor = machine_kind().split("\n")
    lines = [
        "# Latency\n",
        f"Reproduce with `{command}`.\n",
        f"{processor[min(3, len(processor) - 1)]}, {os.cpu_count()} cores; onnxruntime {version('onnxruntime')} with "
        f"one thread, one sample; Python {platform.python_version()}. All models of a network are timed in turn, "
        f"{ROUNDS} rounds; a ratio is the median over rounds of the ratio within a round, its spread the distance of "
        "the quartiles over the median. *Gain* is what is removed of the latency over what is removed of the MACs. "
        "*Defaults* are those of `onnxfold fold`; *weights alone* is `--objective weights --round-to 1`.\n",
        "## Folds of a part of the weights\n",
    ]
    for network in networks:
        lines += _network(network)
    lines += ["## Folds to a limit of latency\n", *_limits(networks), "", "## Goals\n", *_goals(networks), ""]
    return "\n".join(lines)


def _network(network: dict[str, Any]) -> Iterable[str]:
    dense = network["rows"][0]
    what = f"`{network['file']}`" if network["trained"] else "untrained, so only times are compared"
    accurate = "accuracy" in dense
    yield f"### {network['name']}\n"
    head = f"{what}; dense {dense['ms']:.2f} ms, spread {dense['spread']:.1%}"
    yield head + (f", accuracy {dense['accuracy']:.2%} on {network['images']:,} images.\n" if accurate else ".\n")
    columns = ["weights removed", "widths", "MACs / dense", "latency / dense", "spread", "gain"]
    columns += ["accuracy"] if accurate else []
    yield f"| {' | '.join(columns)} |"
    yield "|---:|---|" + "---:|" * (len(columns) - 2)
    for row in network["rows"][1:]:
        macs, gain = row["macs_ratio"], gain_of(row)
        cells = [f"{row['removed']:.1%}", row["choice"], "" if macs is None else f"{macs:.2f}", f"{row['ratio']:.2f}"]
        cells += [f"{row['spread']:.1%}", "" if gain is None else f"{gain:.0%}"]
        cells += [f"{row['accuracy']:.2%}"] if accurate else []
        yield f"| {' | '.join(cells)} |"
    yield ""


def gain_of(row: dict[str, Any]) -> float | None:
    """Return the latency that a fold removes over the MACs that it removes; None where it removes hardly any."""
    macs = row.get("macs_ratio")
    return (1.0 - row["ratio"]) / (1.0 - macs) if macs is not None and macs < 0.995 else None


def _limits(networks: Sequence[dict[str, Any]]) -> Iterable[str]:
    yield f"`--max-latency {LIMIT}`, measured again in turn with the dense network.\n"
    yield "| network | asked | reached | spread | weights removed | fold |"
    yield "|---|---:|---:|---:|---:|---:|"
    for network in networks:
        row = network["limited"]
        if "error" in row:
            yield f"| {network['name']} | {row['asked']} | {row['error'].replace('|', '/')} | | | |"
            continue
        reached = (f"{row['reached']:.2f}", f"{row['spread']:.1%}", f"{row['removed']:.1%}", f"{row['seconds']:.0f} s")
        yield f"| {' | '.join([network['name'], row['asked'], *reached])} |"


def _goals(networks: Sequence[dict[str, Any]]) -> Iterable[str]:
    defaults = [(n["name"], r) for n in networks for r in n["rows"] if r["choice"] == "defaults"]
    gains = [(name, row, gain) for name, row in defaults if (gain := gain_of(row)) is not None]
    short = [f"{name} {row['asked']:.0%} ({gain:.0%})" for name, row, gain in gains if gain < _GAIN]
    slower = [f"{name} {row['asked']:.0%}" for name, row in defaults if row["ratio"] > 1.0 + row["spread"]]
    half = [(name, row["ratio"]) for name, row in defaults if row["asked"] == 0.5 and name in _HALVED]
    above = [f"{name} ({ratio:.2f})" for name, ratio in half if ratio > _AT_HALF]
    met = [n["name"] for n in networks if n["limited"].get("reached", 9.0) <= float(LIMIT[:-1]) * _TOLERANCE]
    missed = [n["name"] for n in networks if n["name"] not in met]
    yield _goal(f"the gain is at least {_GAIN:.0%} at defaults", len(gains), short)
    yield _goal("no fold at defaults is slower than the dense network", len(defaults), slower)
    yield _goal(f"latency at half of the weights is at most {_AT_HALF:.2f} of dense", len(half), above)
    yield _goal(f"`--max-latency` is met within {_TOLERANCE - 1:.0%}", len(networks), missed)
    for name, at, lost in _losses(networks):
        yield f"- {name} at {at:.0%}: defaults lose {100 * lost:+.2f} points against weights alone"


def _goal(what: str, count: int, against: Sequence[str]) -> str:
    return f"- {what}: {count - len(against)} of {count}" + (f", not {', '.join(against)}" if against else "")


def _losses(networks: Sequence[dict[str, Any]]) -> Iterable[tuple[str, float, float]]:
    """Yield what the defaults lose in accuracy against widths by weights alone, by network and part of the weights."""
    for network in networks:
        rows = [row for row in network["rows"][1:] if "accuracy" in row]
        for row in rows:
            if row["choice"] == "defaults":
                beside = next(r for r in rows if r["choice"] != "defaults" and r["asked"] == row["asked"])
                yield network["name"], row["asked"], beside["accuracy"] - row["accuracy"]
