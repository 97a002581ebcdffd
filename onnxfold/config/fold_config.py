"""The options of a fold: one table, validated once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from numpy.typing import NDArray

from onnxfold.config import checks, option, pixels, values
from onnxfold.config.goals import LIMITS, as_plain, check_goals, describe_goals
from onnxfold.config.option import ALWAYS, LISTED, NEVER, SHARED, Kind, Option
from onnxfold.errors import ConfigError

_MOST = 1_000_000
_Goal = partial(Option, group=option.GOAL)
_Limit = partial(_Goal, check=checks.limit, in_merge=True, in_sweep=LISTED)
_Method = partial(Option, group=option.METHOD, in_merge=True, in_sweep=SHARED)
_Inputs = partial(Option, group=option.INPUTS, in_merge=True, in_sweep=SHARED)
_Language = partial(Option, group=option.LANGUAGE)
_Output = partial(Option, group=option.OUTPUT, in_merge=True)
_Machine = partial(Option, group=option.MACHINE, in_merge=True)


@dataclass(frozen=True, kw_only=True)
class FoldConfig:
    """One folding request: every option of a fold, with its type, its default, and all that is said of it.

    Raises
    ------
    OptionTypeError
        If a value has a type that makes no sense.
    ConfigError
        If a value makes no sense.
    """

    # fmt: off
    sparsity: Annotated[float | None, _Goal(
        help="Fraction of the weights to remove, in (0, 1).",
        more="Reached within one percentage point. With `dtype` 'int8' it may be 0: then the model is only quantised.",
        default="without a goal, the most up to 0.5 that keeps 95 % agreement", check=checks.number, first=True,
        kind=Kind.NUMBER, in_merge=True, in_sweep=LISTED, recorded=ALWAYS, request="sparsity {:g}",
    )] = None
    lossless: Annotated[bool, _Goal(
        help="Remove only what changes no output: weights stored twice, dead channels, exact duplicates.",
        more="The method does not matter then. A model without any is copied.",
        check=checks.flag, kind=Kind.FLAG, request="without loss",
    )] = False
    channel_ratio: Annotated[float | None, _Goal(
        help="Fraction of the channels to remove from every group, in [0, 1).", kind=Kind.NUMBER, in_sweep=LISTED,
        check=partial(checks.fraction, zero=True, meaning="the fraction of channels to remove"), recorded=ALWAYS,
        request="channel ratio {:g}",
    )] = None
    ratios: Annotated[Mapping[str, float], _Goal(
        help="Channel ratio of the groups that have a node that matches a glob, in [0, 1); 0 keeps them.",
        more="These groups take no part in the allocation.", check=checks.ratios, kind=Kind.SHARES, flag="ratio",
        in_merge=True, recorded=ALWAYS,
    )] = field(default_factory=lambda: values.NOTHING)
    min_fidelity: Annotated[float | None, _Goal(
        help="Lowest agreement with the original to keep on held-out inputs, in (0, 1); sets the sparsity.",
        more="Of models without class scores: one minus the error, relative to how their values vary over the samples.",
        first=True, kind=Kind.NUMBER,
        check=partial(checks.fraction, zero=False, meaning="the agreement that must be kept"), recorded=ALWAYS,
        request="fidelity of at least {:g}",
    )] = None
    max_drop: Annotated[float | None, _Goal(
        help="Highest loss of top-1 accuracy on held-out samples of `data`, in points, in [0, 100); sets the sparsity.",
        more="A quarter of the samples decides; the network is run on the others, unless `calibration` or `inputs` is "
        "given: then all samples decide.",
        check=partial(checks.bounded_number, most=100, zero=True), kind=Kind.NUMBER, metavar="POINTS",
        request="at most {:g} points of accuracy lost",
    )] = None
    data: Annotated[str | Path | Mapping[str, NDArray[Any]] | None, _Goal(
        help="Labelled samples for `max_drop`: inputs by name, and labels 'y'.", check=checks.samples, kind=Kind.PATH,
        metavar="FILE.npz", reads="", role="the labelled data",
    )] = None
    max_latency: Annotated[float | str | None, _Goal(
        help="Limit of a run in onnxruntime on this machine, e.g. 3.5ms, or 0.6x of the input's.",
        more="A number alone is milliseconds.", check=checks.latency_limit, metavar="TIME",
        request="a latency of at most {}",
    )] = None
    tolerance: Annotated[float, _Goal(
        help="Percent that a measured latency may be above `max_latency`, and how well it must be known.",
        check=partial(checks.bounded_number, most=100.0), kind=Kind.NUMBER, metavar="PERCENT",
    )] = 5.0
    latency_table: Annotated[str | Path | Mapping[str, Any] | None, _Goal(
        help="Take latencies from this report, and measure nothing.",
        more="The report of an earlier fold, or its ``latency_table``. The same table gives the same bytes.",
        check=checks.latency_table, kind=Kind.PATH, metavar="FILE.json", reads="", role="the latency table",
    )] = None
    device: Annotated[str | None, _Goal(
        help="Fold until the model fits a device: name or TOML file of a profile.", check=checks.path_text,
        metavar="NAME", words="onnxfold.budget.devices:known_devices", first=True, in_merge=True, in_sweep=LISTED,
        recorded=ALWAYS, reads=".toml", role="the device", request="fits {}",
    )] = None
    max_params: Annotated[int | str | None, _Limit(
        help="Limit of parameters, e.g. 1.5M (K = 1000).", metavar="N", request="at most {} params",
    )] = None
    max_macs: Annotated[int | str | None, _Limit(
        help="Limit of multiply-accumulates per sample, e.g. 50M.", metavar="N", request="at most {} macs",
    )] = None
    max_ram: Annotated[int | str | None, _Limit(
        help="Limit of activation memory, e.g. 256K (K = 1024).", metavar="BYTES", request="at most {} ram",
    )] = None
    max_flash: Annotated[int | str | None, _Limit(
        help="Limit of weights and graph structure, e.g. 1M.", metavar="BYTES", request="at most {} flash",
    )] = None
    drop_blocks: Annotated[int | str | None, _Goal(
        help="Drop this many residual blocks whole, those that change their stream least; 'auto': branches that cost "
        "less than channels of the same weight.",
        more="Alone it is all that is done. Blocks with caches go only with `allow_cache_change`; the layers that stay "
        "are numbered anew.",
        check=partial(checks.step, most=_MOST), kind=Kind.STEP, metavar="N|auto",
    )] = None
    method: Annotated[str, _Method(
        help="Clustering, repair and inputs by name: 'fold-ls', 'fold-ar', 'fold-naive', 'fold-r', 'fold-dir', "
        "'prune-l1', 'prune-l2', 'wanda-sp', 'flap', 'ifm', 'inn', 'slicegpt', 'shortgpt'.",
        more="'slicegpt' rotates residual streams, 'shortgpt' drops residual blocks.", check=checks.text,
        metavar="NAME", words="onnxfold.folding.methods:METHODS", in_sweep=LISTED, recorded=ALWAYS,
    )] = "fold-ls"
    cluster: Annotated[str | None, _Method(
        help="Replace the method's clustering: 'elimination', 'kmeans', 'kmeans-heads', 'ward', 'complete', 'average', "
        "'single', 'spectral', 'greedy', 'ifm', 'inn', 'top-l1', 'top-l2', 'rotation', 'streams', 'wanda', 'flap'.",
        more="Merges have 'matching', 'zip' and 'by-place', too, which know the networks.", check=checks.text,
        metavar="NAME", words="onnxfold.cluster.partitioners:PARTITIONERS", recorded=ALWAYS,
    )] = None
    repair: Annotated[str | None, _Method(
        help="Replace the method's repair: 'none', 'approximate', 'independent', 'recalibrate', 'least-squares', "
        "'bias'.", check=checks.text, metavar="NAME", words="onnxfold.folding.methods:REPAIRS", recorded=ALWAYS,
    )] = None
    allocation: Annotated[str, _Method(
        help="Allocation of widths: 'global', for those that lose least, or 'uniform'.",
        check=partial(checks.choice, known=values.ALLOCATIONS), words="onnxfold.config.values:ALLOCATIONS",
        recorded=ALWAYS, in_merge=False,
    )] = "global"
    objective: Annotated[str, _Method(
        help="Cost that accuracy is traded against by global allocation: 'balanced', 'weights', 'macs' or 'latency'.",
        check=checks.text, metavar="NAME", words="onnxfold.budget.objectives:OBJECTIVES", recorded=ALWAYS,
    )] = values.DEFAULT_OBJECTIVE
    round_to: Annotated[int | str, _Method(
        help="Make widths multiples of this number; 'auto': of numbers that a runtime computes fast, if no memory is "
        "limited.", check=partial(checks.step, most=_MOST), kind=Kind.STEP, recorded=ALWAYS,
    )] = values.DEFAULT_ROUND_TO
    keep: Annotated[Sequence[str], _Method(
        help="Keep all channels of groups with a node that matches this glob.", check=checks.texts, kind=Kind.TEXTS,
        metavar="GLOB", recorded=ALWAYS,
    )] = ()
    refine: Annotated[str, _Method(
        help="After the fold, train 'all' weights, or scales and biases of 'norms', to answer as the original does on "
        "the inputs of the fold; needs torch.",
        more="They are kept only if answers on held-out inputs come closer. On the command line, alone it is 'all'.",
        check=partial(checks.choice, known=values.REFINEMENTS), metavar="[none|all|norms]",
        words="onnxfold.config.values:REFINEMENTS", alone="all", in_sweep=LISTED,
    )] = values.NO_REFINEMENT
    refine_steps: Annotated[int | None, _Method(
        help="Number of steps of `refine`.", default="by their cost", check=partial(checks.whole, least=1, most=_MOST),
        kind=Kind.INTEGER, metavar="N",
    )] = None
    inputs: Annotated[str, _Inputs(
        help="Inputs to run the network on: 'auto', 'deep-inversion', 'dead-leaves', 'noise', or an .npz file.",
        check=checks.path_text, metavar="KIND", words="onnxfold.config.values:INPUTS", recorded=ALWAYS, reads=".npz",
    )] = "auto"
    calibration: Annotated[str | Path | Mapping[str, NDArray[Any]] | None, _Inputs(
        help="Run the network on these unlabeled samples instead: an .npz file by input name; a folder of JPEG and PNG "
        "files, with `mean` and `std`; or a text for a language model.",
        more="In Python also arrays by input name, samples along axis 0. Images need the extra ``images``, texts the "
        "extra ``text``; 'fold-ls' runs a language model on what it writes itself, too.", check=checks.samples,
        kind=Kind.PATH, metavar="FILE.npz|FILE.txt|DIR", first=True, recorded=ALWAYS, reads="", role="calibration",
    )] = None
    samples: Annotated[int | None, _Inputs(
        help="Number of generated samples, or of images of a folder.", default="by their cost, at most 512",
        check=partial(checks.whole, least=1, most=_MOST), kind=Kind.INTEGER, recorded=ALWAYS,
    )] = None
    input_seconds: Annotated[float | None, _Inputs(
        help="Time limit of generating samples, in seconds.", default="a counted cost, and no clock",
        more="An inversion that takes longer is stopped; its result depends on the machine's speed then, and a note "
        "says so.", check=partial(checks.bounded_number, most=1e7), kind=Kind.NUMBER, metavar="N",
    )] = None
    input_steps: Annotated[Sequence[int], _Inputs(
        help="Repeat an inversion with these steps per batch, which its report holds.",
        check=partial(checks.wholes, least=1, most=_MOST), kind=Kind.INTEGERS, metavar="N[,N...]", in_sweep="",
    )] = ()
    mean: Annotated[float | Sequence[float] | None, _Inputs(
        help="Mean of the pixels of a folder, one or one per channel: up to 1 for pixels of 0..1, larger for 0..255.",
        kind=Kind.NUMBERS, metavar="M[,M...]",
    )] = None
    std: Annotated[float | Sequence[float] | None, _Inputs(
        help="Their standard deviation, in these units.", kind=Kind.NUMBERS, metavar="S[,S...]",
    )] = None
    channels: Annotated[str, _Inputs(
        help="Order of channels that the model takes: 'rgb', or 'bgr' as OpenCV reads images.", metavar="[rgb|bgr]",
        words="onnxfold.config.pixels:CHANNELS",
    )] = pixels.RGB
    input_shapes: Annotated[Mapping[str, Sequence[int]], _Inputs(
        help="Sizes of free input dimensions.", check=checks.shapes, kind=Kind.SHAPES, recorded=ALWAYS,
    )] = field(default_factory=lambda: values.NOTHING)
    tokenizer: Annotated[str | Path | None, _Language(
        help="Tokenizer of a language model.", default="tokenizer.json beside it", check=checks.path_text,
        kind=Kind.PATH, metavar="FILE.json", in_sweep=SHARED, reads="", role="the tokenizer",
    )] = None
    vocabulary: Annotated[int | str | Path | None, _Language(
        help="Of a folder, keep only tokens of a text, of Unicode scripts (latin,common), or the N most common ones.",
        more="Bytes, special tokens and what merges need stay. Alone it is all that is done.", check=checks.vocabulary,
        metavar="FILE.txt|SCRIPTS|N", reads=".txt", role="the text", request="vocabulary {}",
    )] = None
    allow_cache_change: Annotated[bool, _Language(
        help="Let heads in caches of keys and values go, equally many in every layer; shapes of caches change.",
        more="The configurations of a folder follow.", check=checks.flag, kind=Kind.FLAG,
    )] = False
    per_layer_cache: Annotated[bool, _Language(
        help="With `allow_cache_change`: other numbers in every layer.", check=checks.flag, kind=Kind.FLAG,
    )] = False
    dtype: Annotated[str, _Output(
        help="Types of the result: 'keep', the model's own, or 'int8'; `sparsity` 0 then only quantises.",
        more="int8 weights and uint8 activations, as QDQ ONNX that is calibrated on the inputs of the fold; where the "
        "model reads text, integer products that take the ranges of every run. Every goal but `min_fidelity` and every "
        "limit is about the model before it is quantised.", check=partial(checks.choice, known=values.DTYPES),
        metavar="TYPE", words="onnxfold.config.values:DTYPES", in_sweep=SHARED,
    )] = values.KEEP
    seed: Annotated[int, _Output(
        help="Seed of all random numbers.", more="The same input, options and seed give the same bytes on one machine.",
        kind=Kind.INTEGER, check=partial(checks.whole, least=0, most=checks.LARGEST_SEED), recorded=ALWAYS,
    )] = 0
    verify: Annotated[bool, _Output(
        help="Run original and result in onnxruntime before anything is written, and measure fidelity and latency.",
        check=checks.flag, kind=Kind.FLAG, in_command=False, recorded=NEVER,
    )] = True
    save_as_external_data: Annotated[bool, _Output(
        help="Write the weights to a file beside the model, OUT.onnx.data.", check=checks.flag, kind=Kind.FLAG,
    )] = False
    threads: Annotated[int, _Machine(
        help="Threads of onnxruntime wherever latency is measured.",
        check=partial(checks.whole, least=1, most=checks.MOST_THREADS), kind=Kind.INTEGER, metavar="N",
    )] = 1
    torch_device: Annotated[str, _Machine(
        help="Where `refine` computes: 'cpu', 'cuda', or 'auto': on CUDA where torch has a device.",
        check=partial(checks.choice, known=values.TORCH_DEVICES), metavar="[auto|cpu|cuda]",
        words="onnxfold.config.values:TORCH_DEVICES", in_sweep=SHARED,
    )] = "auto"
    max_memory: Annotated[int | str | None, _Machine(
        help="Memory limit, e.g. 2G.", default="3/4 of the machine's or container's", check=checks.memory,
        metavar="BYTES", in_sweep=SHARED,
        more="Generated inputs are made fewer to keep it; a step that cannot be made smaller is refused.",
    )] = None
    cache: Annotated[str | PathLike[str] | None, _Machine(
        help="Keep generated inputs in this folder for further folds of the model; 'none' keeps nothing.",
        default="in the user's cache folder", more="It changes no result.", check=checks.cache, metavar="DIR",
        recorded=NEVER,
    )] = values.DEFAULT_CACHE
    # fmt: on

    def __post_init__(self) -> None:
        keep = partial(object.__setattr__, self)
        # Every field alone: numbers of numpy become Python's, sequences and mappings are copied.
        for name, entry in OPTIONS.items():
            value = getattr(self, name)
            if value is not None or getattr(type(self), name, values.NOTHING) is not None:
                keep(name, entry.check(name, value))
        if self.sparsity is not None:
            what, zero = "the fraction of the weights to remove", self.quantizes or self.vocabulary is not None
            keep("sparsity", checks.fraction("sparsity", self.sparsity, zero=zero, meaning=what))
        scale = pixels.pixel_scale(self.mean, self.std, self.channels)
        keep("mean", None if scale is None else scale.mean or None)
        keep("std", None if scale is None else scale.std or None)
        check_goals(self)
        if self.lossless:
            keep("method", values.EXACT)
        if self.channel_ratio is not None or self.lossless:
            keep("allocation", "uniform")
        if self.inputs not in values.INPUTS:
            if not self.inputs.endswith(".npz"):
                raise ConfigError(f"inputs='{self.inputs}' is not one of {', '.join(values.INPUTS)}, nor an .npz file")
            keep("calibration", self.inputs if self.calibration is None else self.calibration)
            keep("inputs", "auto")

    @property
    def is_global(self) -> bool:
        """Whether widths are chosen by error curves."""
        return self.allocation == "global"

    @property
    def quantizes(self) -> bool:
        """Whether the folded model is quantised."""
        return self.dtype == values.INT8

    @property
    def refines(self) -> bool:
        """Whether the folded model is trained."""
        return self.refine != values.NO_REFINEMENT

    @property
    def keeps_widths(self) -> bool:
        """Whether no channel is to go, so that quantising is all there is to do."""
        nothing_else = not self.has_limits and not any(self.ratios.values())
        return nothing_else and (self.sparsity == 0.0 or (self.sparsity is None and self.only_removes))

    @property
    def only_removes(self) -> bool:
        """Whether a number of blocks to drop, or of words, is all that is asked for."""
        others = self.sparsity is not None or self.channel_ratio is not None or self.search_option
        return isinstance(self.drop_blocks, int if self.vocabulary is None else int | None) and not others

    @property
    def is_for_speed(self) -> bool:
        """Whether widths are chosen by error curves, and no memory is limited as it is on microcontrollers."""
        return self.is_global and self.device is None and self.max_ram is None and self.max_flash is None

    @property
    def may_add_products(self) -> bool:
        """Whether products may be added where that makes weights fewer: neither memory nor time is what is short."""
        return self.is_for_speed and not self.needs_latency and not self.keeps_widths

    @property
    def lacks_goal(self) -> bool:
        """Whether the request sets no goal, so that a search removes as much as keeps the answers."""
        others = (
            self.has_limits or self.search_option or self.only_removes or self.lossless or any(self.ratios.values())
        )
        return self.sparsity is None and self.channel_ratio is None and not others

    @property
    def search_option(self) -> str:
        """The option by which a search decides how far to fold; empty without one."""
        return "min_fidelity" if self.min_fidelity is not None else "max_drop" if self.max_drop is not None else ""

    @property
    def request(self) -> str:
        """The request, in words."""
        return describe_goals(self, OPTIONS)

    @property
    def needs_latency(self) -> bool:
        """Whether widths depend on what layers take."""
        return self.max_latency is not None or self.objective == "latency"

    @property
    def has_limits(self) -> bool:
        """Whether anything but the number of weights removed is limited."""
        limits = [self.device, self.max_latency, *(getattr(self, f"max_{name}") for name in LIMITS)]
        return any(limit is not None for limit in limits)

    @property
    def pixel_scale(self) -> pixels.PixelScale | None:
        """Scale that makes inputs of the pixels of images; None where it is not given."""
        return pixels.pixel_scale(self.mean, self.std, self.channels)

    @property
    def about_inputs(self) -> list[str]:
        """Names of the options that are given and say what the network is run on."""
        names = [n for n, o in OPTIONS.items() if o.group == option.INPUTS and n not in ("std", "input_shapes")]
        return [name for name in (*names, "tokenizer") if getattr(self, name) != getattr(FoldConfig, name)]

    def to_dict(self) -> dict[str, Any]:
        """Return the request as plain values, for reports and provenance."""
        return as_plain(self, OPTIONS)


_HINTS = get_type_hints(FoldConfig, include_extras=True)
#: Every option, by the name of the field that it annotates.
OPTIONS: Mapping[str, Option] = {name: hint.__metadata__[0] for name, hint in _HINTS.items()}
