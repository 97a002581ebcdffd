"""Cells of the accuracy benchmark, and the sections that request them."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.accuracy.networks import Network
from onnxfold.cluster.partitioners import PARTITIONERS
from onnxfold.errors import ConfigError
from onnxfold.folding.methods import METHODS, REPAIRS, find_method

SPARSITIES = (0.25, 0.5, 0.7, 0.85)
COMPARED = (0.5, 0.7)
CHANNEL_RATIOS = (0.25, 0.5, 0.7)

#: Peers: the name that a cell's method has, the norm by which onnxsim ranks, and whether it pools all layers.
PEERS = {"onnxsim-l2": ("l2", False), "onnxsim-l2-global": ("l2", True)}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One fold and the accuracy that is left.

    Parameters
    ----------
    network : str
        Name of the network.
    sparsity : float
        Fraction of the weights to remove, or of the channels where `channels` is set.
    method, cluster, repair, allocation, inputs, seed
        Options of :func:`onnxfold.fold`; inputs 'data' are training images, and a method of :data:`PEERS` is another
        tool's.
    channels : bool
        The fraction is one of channels.
    last_stages : int
        Fold only the groups of this many widest stages; 0 for all.
    defaults : bool
        Widths and objective are the package's defaults; if not, any width, traded against weights alone.
    """

    network: str
    sparsity: float
    method: str = "fold-ls"
    cluster: str | None = None
    repair: str | None = None
    allocation: str = "uniform"
    inputs: str = "auto"
    seed: int = 0
    channels: bool = False
    last_stages: int = 0
    defaults: bool = False

    @property
    def key(self) -> str:
        """What identifies the cell in files."""
        said = asdict(self)
        if not self.defaults:
            del said["defaults"]
        return "|".join(f"{name}={value}" for name, value in said.items())


@dataclass(frozen=True)
class Bar:
    """Targets of one network: accuracy in percent by sparsity."""

    network: str
    allocation: str
    inputs: str
    targets: dict[float, float]

    def cell(self, sparsity: float, seed: int = 0) -> Cell:
        """Return the cell of one target."""
        return Cell(network=self.network, sparsity=sparsity, allocation=self.allocation, inputs=self.inputs, seed=seed)


_FASHION, _CIFAR = "resnet18_w32_fashion", "resnet18_w32_cifar10"
_FASHION_GLOBAL = {0.25: 92.8, 0.5: 92.8, 0.7: 92.6, 0.85: 92.2}
_CIFAR_GLOBAL = {0.25: 88.5, 0.5: 88.3, 0.7: 87.6, 0.85: 85.5}
#: How far files without BatchNormalization may lie below their twins' targets.
_FUSED_MARGIN = {0.25: 0.5, 0.5: 0.7, 0.7: 1.5}


def _fused(targets: dict[float, float]) -> dict[float, float]:
    return {s: round(targets[s] - margin, 1) for s, margin in _FUSED_MARGIN.items()}


BARS = (
    Bar(f"{_FASHION}_bn", "uniform", "auto", {0.25: 92.6, 0.5: 92.3, 0.7: 90.5}),
    Bar(f"{_FASHION}_bn", "global", "auto", _FASHION_GLOBAL),
    Bar(f"{_CIFAR}_bn", "uniform", "auto", {0.25: 88.0, 0.5: 86.5, 0.7: 82.5}),
    Bar(f"{_CIFAR}_bn", "global", "auto", _CIFAR_GLOBAL),
    Bar(f"{_FASHION}_fused", "global", "auto", _fused(_FASHION_GLOBAL)),
    Bar(f"{_CIFAR}_fused", "global", "auto", _fused(_CIFAR_GLOBAL)),
    # What 'auto' takes where torch is not installed.
    Bar(f"{_CIFAR}_bn", "uniform", "dead-leaves", {0.25: 87.2, 0.5: 84.5, 0.7: 78.0}),
)
#: Bars whose result with another seed is compared, and the sparsity at which it is.
SEEDED = tuple(bar for bar in BARS if bar.inputs == "auto" and bar.network.endswith("_bn"))
SEEDED_SPARSITY = 0.5

#: A method of each partition, to combine with repairs.
_BASES = {method.cluster: name for name, method in reversed(METHODS.items())}


def composed(cluster: str, repair: str) -> dict[str, Any] | None:
    """Return the options of a partition with a repair, by the name of a method where it has one, None if refused."""
    for name, method in METHODS.items():
        if (method.cluster, method.repair) == (cluster, repair) and method.inputs != "data" and not method.drops_blocks:
            return {"method": name}
    options = {"method": _BASES.get(cluster, "fold-naive"), "cluster": cluster, "repair": repair}
    try:
        find_method(options["method"], cluster=cluster, repair=repair)
    except ConfigError:
        return None
    return options


def bars(networks: list[Network]) -> list[Cell]:
    """Return the cells of the targets, and those with a second seed."""
    known = {n.name for n in networks}
    cells = [bar.cell(s) for bar in BARS for s in bar.targets]
    cells += [bar.cell(SEEDED_SPARSITY, seed=1) for bar in SEEDED]
    return [cell for cell in cells if cell.network in known]


def curves(networks: list[Network]) -> list[Cell]:
    """Return accuracy over sparsity for every network, by method and allocation; files without BN beside the peer."""
    cells = []
    for network in main_networks(networks):
        variants: list[dict[str, Any]] = [
            {"method": method, "allocation": allocation}
            for method in ("fold-ls", "fold-ar")
            for allocation in ("uniform", "global")
        ]
        if network.form == "bn":
            variants += [{"inputs": "dead-leaves"}, {"method": "fold-dir"}]
            variants += [{"method": m} for m in ("fold-naive", "prune-l2")]
        else:
            variants += [{"method": m} for m in ("fold-naive", "prune-l2", *PEERS)]
        cells += [Cell(network=network.name, sparsity=s, **v) for v in variants for s in SPARSITIES]
    return cells


def defaults(networks: list[Network]) -> list[Cell]:
    """Return what a user gets without options, and what trades error against weights alone."""
    return [
        Cell(network=network.name, sparsity=s, allocation="global", defaults=chosen)
        for network in main_networks(networks)
        for chosen in (True, False)
        for s in SPARSITIES
    ]


def methods(networks: list[Network]) -> list[Cell]:
    """Return every partition with every repair it takes, and with statistics of data for comparison."""
    cells = []
    for network in with_batch_norm(networks):
        options = [composed(c, r) for c in ("elimination", "kmeans", "ifm", "top-l1", "top-l2") for r in REPAIRS]
        variants = [o for o in options if o is not None]
        variants += [{"method": "fold-r", "inputs": "data"}, {"method": "fold-ls", "inputs": "data"}]
        cells += [Cell(network=network.name, sparsity=s, **v) for v in variants for s in COMPARED]
    twins = {n.name for n in networks}
    fused = [n.name.removesuffix("bn") + "fused" for n in with_batch_norm(networks)]
    cells += [Cell(network=n, sparsity=s, method=m) for n in fused if n in twins for m in PEERS for s in COMPARED]
    return cells


def clusterings(networks: list[Network]) -> list[Cell]:
    """Return every partition with the same two repairs, and with statistics of training images."""
    reset, refitted = ([o for c in PARTITIONERS if (o := composed(c, r))] for r in ("recalibrate", "least-squares"))
    variants = [*reset, *refitted, *(o | {"inputs": "data"} for o in reset)]
    return _over(with_batch_norm(networks), variants, COMPARED)


def wider(networks: list[Network]) -> list[Cell]:
    """Return networks that were trained in several widths."""
    chosen = [n for n in networks if n.form == "bn" and n.family in ("mlp", "vgg11_bn") and not n.penalty]
    return _over(chosen, ({"method": "fold-ls"}, {"method": "fold-ar"}), SPARSITIES)


def regularised(networks: list[Network]) -> list[Cell]:
    """Return networks that were trained with a penalty, and their like without."""
    penalised = [n for n in networks if n.form == "bn" and n.penalty]
    alike = {(n.family, n.width, n.dataset) for n in penalised}
    plain = [n for n in networks if n.form == "bn" and not n.penalty and (n.family, n.width, n.dataset) in alike]
    return _over([*plain, *penalised], ({"method": m} for m in ("fold-ls", "fold-ar", "fold-naive")), SPARSITIES)


def last_stages(networks: list[Network]) -> list[Cell]:
    """Return folds of the last two stages only, by the fraction of their channels, as IFM is compared."""
    methods = ("fold-ls", "fold-ar", "fold-dir", "fold-naive", "ifm", "inn", "prune-l1")
    variants: list[dict[str, Any]] = [{"method": m} for m in methods]
    variants.append({"method": "ifm", "cluster": "ifm", "repair": "least-squares"})
    return [
        Cell(network=n.name, sparsity=r, channels=True, last_stages=2, **v)
        for n in with_batch_norm(networks)
        for v in variants
        for r in CHANNEL_RATIOS
    ]


def variance(networks: list[Network]) -> list[Cell]:
    """Return the folds whose variance ratios are measured layer by layer."""
    variants: list[dict[str, Any]] = [{"method": m} for m in ("fold-naive", "fold-ar", "fold-dir", "fold-ls")]
    variants += [{"method": "fold-r", "inputs": "data"}]
    return _over(with_batch_norm(networks)[:1], variants, COMPARED)


def correlation(networks: list[Network]) -> list[Cell]:
    """Return the folds whose clusters are examined layer by layer."""
    variants = ({"method": m} for m in ("fold-dir", "fold-ls", "ifm"))
    return _over(with_batch_norm(networks)[:1], variants, COMPARED[:1])


#: Sections that are tables of accuracies, in the order of the page.
SECTIONS: dict[str, Callable[[list[Network]], list[Cell]]] = {
    "bars": bars,
    "curves": curves,
    "defaults": defaults,
    "methods": methods,
    "clusterings": clusterings,
    "wider": wider,
    "regularised": regularised,
    "last-stages": last_stages,
}


def main_networks(networks: list[Network]) -> list[Network]:
    """Return one width of each network: leave out MLPs, penalised training, and all but the widest VGG."""
    widest = max((n.width for n in networks if n.family == "vgg11_bn"), default=0.0)
    return [
        n for n in networks if n.family != "mlp" and not n.penalty and (n.family != "vgg11_bn" or n.width == widest)
    ]


def with_batch_norm(networks: list[Network]) -> list[Network]:
    """Return the networks for CIFAR-10 with BatchNormalizations, the widest ResNet first."""
    found = [n for n in main_networks(networks) if n.form == "bn" and n.dataset == "cifar10"]
    return sorted(found, key=lambda n: (n.family, -n.width))


def _over(networks: list[Network], variants: Iterable[dict[str, Any]], sparsities: Iterable[float]) -> list[Cell]:
    options, wanted = list(variants), list(sparsities)
    return [Cell(network=n.name, sparsity=s, **v) for n in networks for v in options for s in wanted]
