"""Merge networks of one layout: join them into one exact graph, then fold that."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from onnxfold.api import fold_request
from onnxfold.config import OPTIONS, FoldConfig, checks
from onnxfold.config.fold_options import MergeOptions
from onnxfold.config.signatures import takes_options
from onnxfold.errors import ConfigError
from onnxfold.fidelity.estimate import verdict_on
from onnxfold.fidelity.held_out import held_out_inputs, measure_fidelity
from onnxfold.folding.fold_result import FoldResult
from onnxfold.folding.fold_task import check_request
from onnxfold.folding.networks.joined_model import JoinedModel, join_models, network_twice
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.run.session import Session
from onnxfold.inputs.images.synthetic import noise_inputs
from onnxfold.latency.interleaved import latency_of_two
from onnxfold.machine.memory import memory_limit
from onnxfold.passes.join.structure import HEADS
from onnxfold.progress import Progress, silent
from onnxfold.report import FidelityReport
from onnxfold.report.closeness import MergeRecord, NetworkShare

#: Goals that say how far to fold, in place of a width.
_GOALS = ("sparsity", "max_params", "max_macs", "max_ram", "max_flash", "device")


@takes_options([name for name, option in OPTIONS.items() if option.in_merge])
def merge(
    models: Sequence[ModelLike], width: float | None = None, *, heads: str = "auto", labels: Sequence[str] = (),
    until: str | None = None, progress: Progress | None = None, **options: Unpack[MergeOptions],
) -> FoldResult:  # fmt: skip
    """Merge trained networks of one layout into one, without data and without training.

    The networks are put beside each other in one graph, which computes exactly what they compute, and which is folded.

    Parameters
    ----------
    models : sequence of path or ModelProto
        At least two; they are not changed. Layers correspond by structure, not by name, and may have other widths.
    width : float, optional
        Channels of every group, over those of one network, in (0, number of networks]; with all of them the result is
        exact. Default 1, if no other goal is given; a `sparsity` counts the weights of all networks together.
    heads : str
        'join' (one output with the classes of all networks, in their order), 'average' (their mean), 'first', or
        'auto': 'average' where the shapes agree, else 'join'.
    labels : sequence of str
        Names of the classes of the result, for its metadata.
    until : str, optional
        A node of the first network: channels behind it are not merged, each network keeps its own.
    progress : callable, optional
        As of :func:`onnxfold.fold`.
    **options
        Those of :class:`onnxfold.FoldConfig` that a merge has, by name. Each network contributes an equal part of
        generated inputs.

    Returns
    -------
    FoldResult
        With ``.model``, ``.report`` and ``.save(path)``. ``.report.merged`` says how each network is reproduced.

    Raises
    ------
    ConfigError
        If an option makes no sense, or outputs of different shapes are to be averaged.
    ModelLoadError, UnsupportedModelError
        If a network cannot be read, or if they differ in more than widths, with the names of both nodes.
    BudgetError
        If the sparsity or a limit cannot be reached.

    Examples
    --------
    >>> from importlib.resources import files
    >>> import onnxfold
    >>> model = files("onnxfold.data") / "lenet5.onnx"
    >>> result = onnxfold.merge([model, model], method="fold-naive")
    >>> round(result.report.sparsity, 2)
    0.5
    """
    requested: dict[str, Any] = dict(options)
    if isinstance(models, str | bytes) or not isinstance(models, Sequence):
        raise ConfigError("models is a list of paths or ModelProtos, one per network")
    if len(models) < 2:
        raise ConfigError(f"{len(models)} model was given: two or more are merged")
    listed = list(models)
    checks.choice("heads", heads, HEADS)
    names = checks.texts("labels", labels)
    if until is not None:
        checks.text("until", until)
    has_goal = any(requested.get(goal) is not None for goal in _GOALS)
    if has_goal and width is not None:
        raise ConfigError("width says how far to merge: give it without sparsity, limits and device")
    if not has_goal:
        width = checks.bounded_number("width", 1.0 if width is None else width, most=len(listed), zero=False)
        requested["channel_ratio"] = 1.0 - width / len(listed)
    config = FoldConfig(**requested)
    check_request(config, of_networks=True)
    tell = progress or silent
    tell("load", 0, 0)
    with memory_limit(config.max_memory):
        joined = join_models(listed, heads, config.input_shapes, names)
    if until is not None:
        config = replace(config, keep=(*config.keep, *joined.behind(until)))
    result = fold_request(joined.model, config, tell, networks=joined)
    result.report.merged = merge_record(joined, result, config)
    result.report.notes += joined.notes
    return result


def merge_record(joined: JoinedModel, result: FoldResult, config: FoldConfig) -> MergeRecord:
    """Compare a merged model with each of its networks, on generated inputs that the fold has not seen.

    Its latency is compared with that of the first network, too: a merge takes the place of one network or of all.
    """
    fidelities: list[FidelityReport | None] = [None] * len(joined.networks)
    if config.verify:
        inputs = held_out_inputs(joined.graph.view, seed=config.seed, infos=Session(joined.exact).inputs)
        merged = Session(result.view)  # of all networks, opened once
        for i in range(1 if set(joined.graph.heads) == {"first"} else len(joined.networks)):
            fidelities[i] = measure_fidelity(*network_twice(joined, merged, i), inputs, called="held-out")
    names = [network.name.strip("'") for network in joined.networks]
    verdicts = [None if fidelity is None else verdict_on(fidelity) for fidelity in fidelities]
    shares = list(map(NetworkShare, names, fidelities, verdicts))
    latency = None
    if result.report.latency is not None:
        view, first = result.view, joined.sources[0]
        feeds = partial(noise_inputs, samples=1, seed=config.seed, view=view)
        latency = latency_of_two((first, load(first)), (to_model(view), view), feeds, threads=config.threads)
    return MergeRecord(joined.graph.heads, tuple(shares), latency)
