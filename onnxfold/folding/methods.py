"""The methods as rows of one table: partition x repair x inputs."""

from dataclasses import dataclass, replace

from onnxfold.cluster.partitioners import STAND_IN, Partitioner, find_partitioner
from onnxfold.errors import ConfigError


@dataclass(frozen=True)
class Repair:
    """What is done about the activations after the merge.

    Parameters
    ----------
    name : str
        Name on the command line.
    rows : {'stored', 'normalised', 'output'}
        The units that rows are merged in: as they are stored, divided by the standard deviation of their
        BatchNormalization, or scaled to what leaves it.
    needs_inputs : bool
        Whether it runs the network.
    summary : str
        One line for the documentation.
    """

    name: str
    rows: str
    needs_inputs: bool
    summary: str


REPAIRS = {
    r.name: r
    for r in (
        Repair("none", "stored", False, "nothing"),
        Repair("approximate", "normalised", False, "rescale by the correlation of the merged rows (Fold-AR)"),
        Repair("independent", "normalised", False, "rescale as if merged channels were independent (IFM's variances)"),
        Repair("recalibrate", "normalised", True, "statistics of the folded network on inputs (Fold-R, REPAIR)"),
        Repair("least-squares", "output", True, "consumers refitted beside the original, statistics restored"),
    )
}


@dataclass(frozen=True)
class Method:
    """A composition.

    Parameters
    ----------
    name : str
        Name on the command line.
    cluster : str
        A row of :data:`onnxfold.cluster.partitioners.PARTITIONERS`.
    repair : str
        A row of :data:`REPAIRS`.
    inputs : str
        What the network is run on where that is needed, see :mod:`onnxfold.inputs.model_inputs`.
    summary : str
        One line for the help text.
    """

    name: str
    cluster: str
    repair: str
    inputs: str
    summary: str

    @property
    def partitioner(self) -> Partitioner:
        """How channels are chosen."""
        return find_partitioner(self.cluster)

    @property
    def repairs(self) -> Repair:
        """What is done after the merge."""
        return REPAIRS[self.repair]

    @property
    def needs_inputs(self) -> bool:
        """Whether the network is run."""
        return self.partitioner.needs_moments or self.repairs.needs_inputs

    def without_inputs(self) -> "Method":
        """Return what comes closest where a graph cannot be run by itself."""
        cluster = STAND_IN if self.partitioner.needs_moments else self.cluster
        repair = "approximate" if self.repairs.needs_inputs and self.partitioner.merges else self.repair
        repair = "none" if REPAIRS[repair].needs_inputs else repair
        return replace(self, cluster=cluster, repair=repair)


METHODS = {
    m.name: m
    for m in (
        Method("fold-ls", "elimination", "least-squares", "auto", "drop or merge, refit by least squares (no data)"),
        Method("fold-ar", "kmeans", "approximate", "auto", "k-means, mean, approximate repair from weights (no data)"),
        Method("fold-naive", "kmeans", "none", "auto", "k-means, mean, no repair"),
        Method("fold-r", "kmeans", "recalibrate", "data", "k-means, mean, statistics from your data (--calibration)"),
        Method("fold-dir", "kmeans", "recalibrate", "deep-inversion", "fold-r on inverted images (needs torch)"),
        Method("prune-l1", "top-l1", "none", "auto", "keep the channels with the largest L1 norm"),
        Method("prune-l2", "top-l2", "none", "auto", "keep the channels with the largest L2 norm"),
        Method("ifm", "ifm", "independent", "auto", "iterative feature merging"),
    )
}


def find_method(name: str, *, cluster: str | None = None, repair: str | None = None) -> Method:
    """Return a method by name, with another partition or repair where asked for.

    Raises
    ------
    ConfigError
        If there is no such method, partition or repair, or they do not go together.
    """
    if name not in METHODS:
        raise ConfigError(f"method '{name}' is unknown: choose one of {', '.join(METHODS)}")
    if repair is not None and repair not in REPAIRS:
        raise ConfigError(f"repair '{repair}' is unknown: choose one of {', '.join(REPAIRS)}")
    method = METHODS[name]
    method = replace(method, cluster=cluster or method.cluster, repair=repair or method.repair)
    find_partitioner(method.cluster)
    if method.repair in ("approximate", "independent") and not method.partitioner.merges:
        raise ConfigError(
            f"repair '{method.repair}' restores what averaging loses, and cluster '{method.cluster}' averages nothing: "
            "take none, recalibrate or least-squares"
        )
    return method
