"""Inspection of a model: its fold groups, the reasons why other axes stay, and where its time goes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypedDict, Unpack

from onnxfold.channels import FoldGroup
from onnxfold.channels.declarations import Role
from onnxfold.channels.layers import linear_weights
from onnxfold.channels.walker import node_name
from onnxfold.config import NOTHING, FoldConfig, checks
from onnxfold.config.signatures import takes_options
from onnxfold.folders import takes_folders
from onnxfold.folding import open_model
from onnxfold.folding.prepare import spare_weights
from onnxfold.folding.probes.measure_latency import profile_network
from onnxfold.graph.files.load import ModelLike, blames_broken_files, load
from onnxfold.graph.nodes import dequantized_tensors
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.tokenizer import rare_words
from onnxfold.latency.layers import LatencyProfile
from onnxfold.passes.normalize.unneeded import ShareEqualWeights
from onnxfold.quantize.integers import dequantize
from onnxfold.report import ModelSize, Refusal


@dataclass(frozen=True)
class WeightShare:
    """Shares of the weights of linear operators (Conv, ConvTranspose, Gemm, MatMul and their like), in [0, 1].

    `outputs` and `inputs` are the shares whose output or input axis lies in fold groups (weights without
    an input axis, depthwise filters, count for the outputs only); `either` is the share for which
    at least one of them does.
    """

    outputs: float
    inputs: float
    either: float
    weights: int


def weight_share(graphs: Sequence[tuple[GraphView, Sequence[FoldGroup]]]) -> tuple[WeightShare, list[int]]:
    """Return the shares over several graphs, and the number of weights on each group's channels."""
    sizes: list[tuple[int, bool, float, float]] = []
    held: list[int] = []
    for view, groups in graphs:
        covered: dict[tuple[str, Role], float] = {}
        spare = {name for group in groups for name in group.seam.spare}
        for group in groups:
            held.append(0)
            for member in (*group.with_role(Role.PRODUCER), *group.with_role(Role.CONSUMER)):
                name = member.axis.tensor
                part = member.positions.size / (view.weights[name].shape[member.axis.axis] * member.axis.blocks)
                # Identity matrices that are not needed yet are no weights of the model.
                held[-1] += 0 if name in group.seam.spare else round(view.weight_size(name) * part)
                if name in group.seam.spare or not group.seam.spare:
                    covered[name, member.role] = min(1.0, covered.get((name, member.role), 0.0) + part)
        for name, is_depthwise in linear_weights(view).items():
            if name in spare:
                continue
            out, into = (covered.get((name, role), 0.0) for role in (Role.PRODUCER, Role.CONSUMER))
            sizes.append((view.weight_size(name), is_depthwise, out, into))
    total = sum(size for size, *_ in sizes)
    dense = sum(size for size, is_depthwise, *_ in sizes if not is_depthwise)
    share = WeightShare(
        outputs=sum(size * out for size, _, out, _ in sizes) / max(total, 1),
        inputs=sum(size * into for size, is_depthwise, _, into in sizes if not is_depthwise) / max(dense, 1),
        either=sum(size * max(out, into) for size, _, out, into in sizes) / max(total, 1),
        weights=total,
    )
    return share, held


@dataclass(frozen=True)
class Inspection:
    """Fold groups, refusals and shares of a model."""

    groups: list[FoldGroup]  # in the order of their first producer
    refusals: list[Refusal]  # weight axes that stay, those that hold back most weights first
    share: WeightShare  # how much of the conv/linear weights lies in groups
    size: ModelSize  # what the model costs
    _rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)  # what was changed on loading
    latency: LatencyProfile | None = None  # where the time goes in onnxruntime, if that was asked for
    takes: str = ""  # what every input of a language model is; empty for other models
    spare: int = 0  # weights that could go at no loss, see :func:`onnxfold.fold` about `lossless`

    @property
    def parameters(self) -> int:
        """Float weights of the model."""
        return self.size.parameters

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: groups with producers, consumers, width and weights; refusals; shares."""
        return {
            "parameters": self.parameters, "macs": self.size.macs, "macs_per": self.size.macs_per,
            "size_bytes": self.size.size_bytes, "lossless": self.spare, "share": asdict(self.share),
            "groups": self._rows, "refusals": [asdict(r) for r in self.refusals], "notes": self.notes,
            **({"takes": self.takes} if self.takes else {}),
            **({} if self.latency is None else {"latency": asdict(self.latency)}),
        }  # fmt: skip


@takes_folders
@blames_broken_files
def measure(model: ModelLike) -> ModelSize:
    """Return parameters, multiply-accumulates (per token where a language model leaves lengths open) and size."""
    view = load(model)
    size_bytes = open_model.bytes_of(model, view)
    dequantize(view)
    return open_model.stored_size(view, size_bytes)


class InspectOptions(TypedDict, total=False):
    """The options that decide which channels of a model may be folded."""

    input_shapes: Mapping[str, Sequence[int]] | None
    allow_cache_change: bool
    per_layer_cache: bool


#: Their names.
ABOUT_CHANNELS = tuple(InspectOptions.__annotations__)


@takes_options(ABOUT_CHANNELS)
@takes_folders
@blames_broken_files
def inspect_model(
    model: ModelLike, *, latency: bool = False, threads: int = 1, **options: Unpack[InspectOptions]
) -> Inspection:
    """Return fold groups, refusals with reasons, the share of the weights in groups, and latencies of layers.

    Groups are those of the default method, tables of words that may become narrower included.

    Parameters
    ----------
    model : path or ModelProto
        The model, or the folder of a language model; it is not changed.
    latency : bool
        Whether to run the model in onnxruntime, to see where the time goes.
    threads : int
        Threads inside an operator of it.

    Returns
    -------
    Inspection
        Its latency is None where it was not asked for.

    Raises
    ------
    ConfigError
        If an option makes no sense.
    VerificationError
        If the model's latency is asked for, and it does not run in its own type.
    """
    wanted, threads = checks.flag("latency", latency), checks.threads(threads)
    form, view = _form(options), load(model, options["input_shapes"])
    size_bytes = open_model.bytes_of(model, view)
    profile = profile_network(view, threads) if wanted else None
    form = _with_plain_weights(form, view, model)
    size = open_model.stored_size(view, size_bytes)
    integers = sum(view.weight_size(name) for name in dequantized_tensors(view.nodes) if view.is_weight(name))
    advice = f"{integers:,} weights are quantised and cannot be merged: inspect the float32 model for its fold groups"
    shared = open_model.share_equal_weights(view)
    scopes = open_model.open_scopes(view, form)
    owners = [(scope.analysed, group) for scope in scopes for group in scope.analysis.groups]
    share, held = weight_share([(scope.analysed, scope.analysis.groups) for scope in scopes])
    spare = shared + spare_weights(scopes)
    refusals = open_model.refusals_of_file(scopes)
    takes = str(token_interface(view) or "")
    rows = [_row(view, group, weights, size.parameters) for (view, group), weights in zip(owners, held, strict=True)]
    notes = view.notes + ([advice] if integers else [])
    return Inspection(open_model.all_groups(scopes), refusals, share, size, rows, notes, profile, takes, spare)


@takes_options(ABOUT_CHANNELS)
@takes_folders
@blames_broken_files
def inspect(model: ModelLike, **options: Unpack[InspectOptions]) -> list[FoldGroup]:
    """Return the fold groups of a model.

    Parameters
    ----------
    model : path or ModelProto
        The model, or the folder of a language model; it is not changed.
    **options
        Those of :class:`onnxfold.FoldConfig` that decide which channels may be folded, by name.

    Returns
    -------
    list of FoldGroup
        In the order of their first producer: channels that may be merged with each other, with ``.name`` (the first
        producing node), ``.size`` (channels) and ``.members`` (weight axes).

    Raises
    ------
    ConfigError
        If an option makes no sense, or does not fit the model.
    ModelLoadError, UnsupportedModelError
        If the model cannot be read, or is not supported.

    Examples
    --------
    >>> from importlib.resources import files
    >>> import onnxfold
    >>> [(group.name, group.size) for group in onnxfold.inspect(files("onnxfold.data") / "lenet5.onnx")]
    [('/conv1/Conv', 6), ('/conv2/Conv', 16), ('/fc1/Gemm', 120), ('/fc2/Gemm', 84)]
    """
    form, view = _form(options), load(model, options["input_shapes"])
    form = _with_plain_weights(form, view, model)
    ShareEqualWeights()(view)
    return open_model.all_groups(open_model.open_scopes(view, form))


def _form(options: InspectOptions) -> open_model.GraphForm:
    """Return the form in which graphs are analysed, but for what depends on the model."""
    request: dict[str, Any] = {**options, "input_shapes": options["input_shapes"] or NOTHING}
    config = FoldConfig(**request)
    return open_model.GraphForm(config.allow_cache_change, config.per_layer_cache, tables=True)


def _with_plain_weights(form: open_model.GraphForm, view: GraphView, model: ModelLike) -> open_model.GraphForm:
    """Put plain weights in the place of those of few bits; return the form with what depends on the model."""
    return replace(form, queries=not dequantize(view), rare=rare_words(model))


def _row(view: GraphView, group: FoldGroup, weights: int, parameters: int) -> dict[str, Any]:
    members = (*group.with_role(Role.CONSUMER), *group.with_role(Role.BASIS))
    readers = [node_name(view, use.node) for member in members for use in member.uses]
    return {
        "name": group.name, "width": group.size, "blocks": group.block_count,
        "weights": weights, "share": weights / parameters if parameters else 0.0,
        "producers": list(group.nodes), "consumers": list(dict.fromkeys(readers)),
    }  # fmt: skip
