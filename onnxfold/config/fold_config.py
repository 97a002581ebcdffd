"""The options of a fold, validated once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnxfold.config import checks, latency, pixels
from onnxfold.config.as_plain import as_plain
from onnxfold.config.goals import LIMITS, check_goals, in_words
from onnxfold.config.quantities import parse_bytes
from onnxfold.errors import ConfigError, OptionTypeError

#: Where no goal is given.
DEFAULT_SPARSITY = 0.5
#: The method that changes nothing where exact duplicates are merged.
_EXACT = "fold-naive"
#: What the error of widths is traded against, and the widths that they are multiples of, unless something is asked for.
DEFAULT_OBJECTIVE, DEFAULT_ROUND_TO = "balanced", "auto"
#: Values of `cache`: the user's own cache folder, and none.
DEFAULT_CACHE, NO_CACHE = "default", "none"

ALLOCATIONS = ("global", "uniform")
#: Types of what is written: the model's own, or int8 weights with uint8 activations.
KEEP, INT8 = DTYPES = ("keep", "int8")
INPUTS = ("auto", "deep-inversion", "dead-leaves", "noise")

_LARGEST_LIMIT = 10**30

_FRACTIONS = {
    "sparsity": "the fraction of the weights to remove",
    "channel_ratio": "the fraction of channels to remove",
    "min_fidelity": "the agreement that must be kept",
}
_MAY_BE_ZERO = ("channel_ratio",)
#: The range of every whole number.
_WHOLE = {"seed": (0, checks.LARGEST_SEED), "threads": (1, checks.MOST_THREADS)}
_LARGEST_STEP = 1_000_000
_MOST_SAMPLES = _MOST_STEPS = 1_000_000
_MOST_SECONDS = 1e7
_MOST_BLOCKS = 1_000_000
_MOST_TOLERANCE = 100.0
#: What nothing by name is; the default of arguments.
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class FoldConfig:
    """One folding request.

    Parameters
    ----------
    sparsity : float, optional
        Fraction of the model's weights to remove, strictly between 0 and 1; reached within one percentage point.
        Exclusive with `channel_ratio`. Default 0.5, if no other goal is given and `ratios` do not match all groups.
    channel_ratio : float, optional
        Fraction of the channels removed from every fold group, in [0, 1).
    ratios : mapping of str to float
        Channel ratio of the groups that have a node matching the glob, in [0, 1); 0 keeps a group whole.
        These groups take no part in the allocation; where all groups match, there is no default `sparsity`.
    method : str
        A row of :data:`onnxfold.folding.methods.METHODS`.
    cluster : str, optional
        A row of :data:`onnxfold.cluster.partitioners.PARTITIONERS` instead of the method's.
    repair : str, optional
        A row of :data:`onnxfold.folding.methods.REPAIRS` instead of the method's.
    allocation : {'global', 'uniform'}
        How widths are chosen: 'global' takes channels where they cost least, 'uniform' gives every group the
        same channel ratio. `channel_ratio` is uniform by its nature.
    max_params, max_macs : int or str, optional
        Most parameters, and multiply-accumulates per sample, that may be left; "1.5M" is 1,500,000.
    max_ram, max_flash : int or str, optional
        Most bytes of activations, and of weights and structure; "256K" is 262,144.
    max_latency : float or str, optional
        Longest that a run in onnxruntime may take on this machine, in milliseconds or as text such as "3.5ms" or
        "0.6x", a part of what it takes before the fold. Reached within the `tolerance`.
    tolerance : float
        Percent by which a measured latency may be above `max_latency`, and how well it must be known.
    latency_table : path or mapping, optional
        What layers take at which width, as a report of a fold with `max_latency` holds it: then nothing is measured,
        and the same table gives the same result. For `max_latency` and the objective 'latency'.
    device : str, optional
        Name or TOML file of a device, whose RAM and flash are further limits.
    min_fidelity : float, optional
        Fold as far as this top-1 agreement (of models without class scores: one minus the relative error) holds on
        inputs that were held out. In (0, 1); takes the place of `sparsity`.
    data : path or mapping of str to ndarray, optional
        Labelled samples: arrays named after the model's inputs, and labels `y`. For `max_drop`.
    max_drop : float, optional
        Fold as far as the top-1 accuracy on samples of `data` that were held out drops by at most so many points. In
        [0, 100); takes the place of `sparsity`.
    inputs : {'auto', 'deep-inversion', 'dead-leaves', 'noise'} or path
        What the network is run on where the method needs that; a path is a `calibration`.
    samples : int, optional
        Samples to generate; by default as many as the counted cost of running them allows, at most 512. Fewer only
        where `input_seconds` or `max_memory` do not allow them; a note says so.
    input_seconds : float, optional
        Most seconds for generating inputs. Samples and steps are planned to take no longer at the counted cost. An
        inversion that takes longer is stopped: its result then depends on the machine's speed, a note says so, and the
        report holds the steps that were done. By default, the counted cost alone decides, and no clock is looked at.
    input_steps : sequence of int
        Steps of an inversion, for each of its batches or one number for all, without a time limit: the steps of a
        report give the same inputs again.
    calibration : path or mapping of str to ndarray, optional
        Unlabeled samples, arrays named after the model's inputs, used in place of generated inputs. Or a folder of JPEG
        and PNG files; or the path of a text, for a language model, which ``fold-ls`` runs on its own, too.
    tokenizer : path, optional
        The ``tokenizer.json`` of a language model; by default, the one beside the model.
    mean, std : float or sequence of float, optional
        What makes inputs of the pixels of a folder's images; see :func:`onnxfold.config.pixels.pixel_scale`.
    channels : {'rgb', 'bgr'}
        The order of a folder's pixels that the model takes, and that mean and std are in.
    round_to : int or 'auto'
        Widths are multiples of this where the group is wide enough. 'auto': of what a runtime computes fast, by what
        reads the group, where allocation is global and no memory is limited; else of 1.
    objective : str
        What the error of widths is traded against: a row of :data:`onnxfold.budget.objectives.OBJECTIVES`. The default
        matters where allocation is global and no memory is limited.
    keep : sequence of str
        Globs; groups that have a matching node are kept whole.
    input_shapes : mapping of str to sequence of int
        Fixes symbolic dimensions of the model's inputs for the analysis.
    allow_cache_change : bool
        Whether heads in caches of keys and values may go, together with all query heads that read them, so that inputs
        and outputs that hold caches change their shapes; in all layers equally many.
    per_layer_cache : bool
        Whether every layer may keep another number of them; only with `allow_cache_change`.
    inside_heads : bool
        Whether heads of attention stay, and dimensions between values and outputs go instead, as many of every head.
    drop_blocks : int or 'auto', optional
        Residual blocks to drop whole, those that change their stream least; without another goal, nothing else is done.
        'auto': branches of blocks, as many as cost less than channels of the same weight would, by measurement. What
        holds caches goes only with `allow_cache_change`.
    tune_norms : bool
        Whether scales and biases of norms are trained after the fold, on its inputs, to answer as the original does;
        kept only if held-out answers come closer. Needs torch.
    lossless : bool
        Whether only what changes no output goes: weights that are stored twice, dead channels and exact duplicates; it
        sets the method.
    dtype : {'keep', 'int8'}
        Types of the written model: its own, or int8 weights and uint8 activations, quantised after the fold: QDQ ONNX,
        or, where it reads text, integer products that take the ranges of every run. Every goal but `min_fidelity` and
        every limit is about the model before it is quantised. A `sparsity` of 0 then only quantises.
    seed : int
        Seed of everything random.
    verify : bool
        Run original and folded model in onnxruntime before anything is written.
    merge_map : bool
        Keep every matrix of the fold for :meth:`onnxfold.FoldResult.save_merge_map`. It changes no result.
    threads : int
        Threads inside an operator of onnxruntime, wherever latency is measured.
    save_as_external_data : bool
        Write the weights beside the model, in ``<name>.data``.
    max_memory : int or str, optional
        Most bytes that a step of the work may take, such as "2G"; by default a part of what the machine has
        (:func:`onnxfold.machine.memory.default_limit`). Generated inputs are made fewer to keep it; what cannot be made
        smaller is refused.
    cache : str or path, optional
        Folder in which what takes long to compute, such as generated inputs, is kept for the next fold: 'default' for
        onnxfold's folder in the user's cache folder, 'none' or None for none. It changes no result.

    Raises
    ------
    OptionTypeError
        If a value has a type that makes no sense.
    ConfigError
        If a value makes no sense.
    """

    sparsity: float | None = None
    channel_ratio: float | None = None
    ratios: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    method: str = "fold-ls"
    cluster: str | None = None
    repair: str | None = None
    allocation: str = "global"
    max_params: int | str | None = None
    max_macs: int | str | None = None
    max_ram: int | str | None = None
    max_flash: int | str | None = None
    max_latency: float | str | None = None
    tolerance: float = 5.0
    latency_table: Any = None
    device: str | None = None
    min_fidelity: float | None = None
    data: Any = None
    max_drop: float | None = None
    inputs: str = "auto"
    samples: int | None = None
    input_seconds: float | None = None
    input_steps: Sequence[int] = ()
    calibration: Any = None
    tokenizer: str | Path | None = None
    mean: float | Sequence[float] | None = None
    std: float | Sequence[float] | None = None
    channels: str = pixels.RGB
    round_to: int | str = DEFAULT_ROUND_TO
    objective: str = DEFAULT_OBJECTIVE
    keep: Sequence[str] = ()
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=lambda: NOTHING)
    allow_cache_change: bool = False
    per_layer_cache: bool = False
    inside_heads: bool = False
    drop_blocks: int | str | None = None
    tune_norms: bool = False
    lossless: bool = False
    dtype: str = KEEP
    seed: int = 0
    verify: bool = True
    merge_map: bool = False
    threads: int = 1
    save_as_external_data: bool = False
    max_memory: int | str | None = None
    cache: str | PathLike[str] | None = DEFAULT_CACHE

    def __post_init__(self) -> None:
        self._check_types()
        check_goals(self)
        if self.lossless:
            self._set("method", _EXACT)
        if self.channel_ratio is not None or self.lossless:
            object.__setattr__(self, "allocation", "uniform")
        if self.lacks_goal and not self.ratios:
            object.__setattr__(self, "sparsity", DEFAULT_SPARSITY)
        if self.allocation not in ALLOCATIONS:
            raise ConfigError(f"allocation='{self.allocation}' is not one of: {', '.join(ALLOCATIONS)}")
        if self.inputs not in INPUTS:
            if not self.inputs.endswith(".npz"):
                raise ConfigError(f"inputs='{self.inputs}' is not one of {', '.join(INPUTS)}, nor an .npz file")
            object.__setattr__(self, "calibration", self.inputs if self.calibration is None else self.calibration)
            object.__setattr__(self, "inputs", "auto")
        if self.latency_table is not None and not self.needs_latency:
            raise ConfigError("latency_table changes nothing without max_latency or objective 'latency'")
        if self.max_memory is not None:
            parse_bytes(self.max_memory)

    def _check_types(self) -> None:
        """Check every field alone; numbers of numpy become Python's, sequences and mappings are copied."""
        checks.one_of("dtype", self.dtype, DTYPES)
        for name, meaning in _FRACTIONS.items():
            zero = name in _MAY_BE_ZERO or (name == "sparsity" and self.quantizes)
            if getattr(self, name) is not None:
                self._set(name, checks.fraction(name, getattr(self, name), zero=zero, meaning=meaning))
        for name, (least, most) in _WHOLE.items():
            self._set(name, checks.whole(name, getattr(self, name), least=least, most=most))
        if self.samples is not None:
            self._set("samples", checks.whole("samples", self.samples, least=1, most=_MOST_SAMPLES))
        if self.input_seconds is not None:
            self._set("input_seconds", checks.positive("input_seconds", self.input_seconds, most=_MOST_SECONDS))
        steps = checks.entries("input_steps", self.input_steps)
        self._set("input_steps", tuple(checks.whole("input_steps", n, least=1, most=_MOST_STEPS) for n in steps))
        for name in ("verify", "merge_map", "save_as_external_data", "tune_norms", "lossless"):
            self._set(name, checks.flag(name, getattr(self, name)))
        if self.drop_blocks is not None:
            self._set("drop_blocks", checks.step("drop_blocks", self.drop_blocks, most=_MOST_BLOCKS))
        names = ("allow_cache_change", "per_layer_cache", "inside_heads")
        for name, value in zip(names, checks.attention_flags(*(getattr(self, n) for n in names)), strict=True):
            self._set(name, value)
        self._set("round_to", checks.step("round_to", self.round_to, most=_LARGEST_STEP))
        for name in ("method", "allocation", "objective"):
            checks.text(name, getattr(self, name))
        for name in ("cluster", "repair"):
            if getattr(self, name) is not None:
                checks.text(name, getattr(self, name))
        self._set("inputs", checks.path_text("inputs", self.inputs))
        self._set("cache", NO_CACHE if self.cache is None else checks.path_text("cache", self.cache))
        if not self.cache or "\0" in fspath(self.cache or ""):
            raise ConfigError("cache is no folder's path: give one, 'default' or 'none'")
        if self.tokenizer is not None:
            self._set("tokenizer", checks.path_text("tokenizer", self.tokenizer))
        if self.device is not None:
            self._set("device", checks.path_text("device", self.device))
        for name in (*(f"max_{limit}" for limit in LIMITS), "max_memory"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                self._set(name, checks.whole(name, value, least=1, most=_LARGEST_LIMIT))
        self._set("max_latency", latency.checked_limit(self.max_latency))
        self._set("tolerance", checks.positive("tolerance", self.tolerance, most=_MOST_TOLERANCE))
        latency.check_table(self.latency_table)
        ratios = checks.by_name("ratios", self.ratios)
        self._set("ratios", {glob: checks.fraction(f"ratio {glob}", r, zero=True) for glob, r in ratios.items()})
        self._set("keep", checks.texts("keep", self.keep))
        self._set("input_shapes", checks.shapes(self.input_shapes))
        if not isinstance(self.calibration, str | PathLike | Mapping | None):
            raise OptionTypeError(
                f"calibration is the path of an .npz file or arrays by name, not {type(self.calibration).__name__}"
            )
        if not isinstance(self.data, str | PathLike | Mapping | None):
            raise OptionTypeError(f"data is the path of an .npz file or arrays by name, not {type(self.data).__name__}")
        if self.max_drop is not None:
            self._set("max_drop", checks.up_to("max_drop", self.max_drop, most=100, zero=True))
        scale = pixels.pixel_scale(self.mean, self.std, self.channels)
        self._set("mean", None if scale is None else scale.mean or None)
        self._set("std", None if scale is None else scale.std or None)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_global(self) -> bool:
        """Whether widths are chosen by error curves."""
        return self.allocation == "global"

    @property
    def quantizes(self) -> bool:
        """Whether the folded model is quantised."""
        return self.dtype == INT8

    @property
    def keeps_widths(self) -> bool:
        """Whether no channel is to go, so that quantising is all there is to do."""
        nothing_else = not self.has_limits and not any(self.ratios.values())
        return nothing_else and (self.sparsity == 0.0 or (self.sparsity is None and self.only_drops))

    @property
    def only_drops(self) -> bool:
        """Whether a number of blocks to drop is all that is asked for."""
        goals = (self.sparsity, self.channel_ratio)
        return isinstance(self.drop_blocks, int) and all(goal is None for goal in goals) and not self.searched

    @property
    def is_for_speed(self) -> bool:
        """Whether widths are chosen by error curves, and no memory is limited as it is on microcontrollers."""
        return self.is_global and self.device is None and self.max_ram is None and self.max_flash is None

    @property
    def may_add_products(self) -> bool:
        """Whether products may be added where that makes weights fewer: neither memory nor time is what is short."""
        return self.is_for_speed and not self.needs_latency and not self.keeps_widths

    @property
    def prefers_steps(self) -> bool:
        """Whether widths are those that a runtime computes fast."""
        return self.round_to == DEFAULT_ROUND_TO and self.is_for_speed

    @property
    def least_step(self) -> int:
        """What widths are multiples of, apart from what a runtime prefers."""
        return 1 if isinstance(self.round_to, str) else self.round_to

    @property
    def effective_objective(self) -> str:
        """The objective; by default, the limit alone where memory or latency is limited."""
        limited = not self.is_for_speed or self.max_latency is not None
        return "weights" if self.objective == DEFAULT_OBJECTIVE and limited else self.objective

    @property
    def lacks_goal(self) -> bool:
        """Whether the request sets no goal, except the ratios of single groups."""
        goals = (self.sparsity, self.channel_ratio)
        others = self.has_limits or self.searched or self.only_drops or self.lossless
        return all(goal is None for goal in goals) and not others

    @property
    def searched(self) -> str:
        """The option by which a search decides how far to fold; empty without one."""
        return "min_fidelity" if self.min_fidelity is not None else "max_drop" if self.max_drop is not None else ""

    @property
    def request(self) -> str:
        """The request, in words."""
        return in_words(self)

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
        """What makes inputs of the pixels of images; None where it is not given."""
        return pixels.pixel_scale(self.mean, self.std, self.channels)

    @property
    def about_inputs(self) -> list[str]:
        """Names of the options that are given and say what the network is run on."""
        given = {
            "inputs": self.inputs != "auto",
            "calibration": self.calibration is not None,
            "tokenizer": self.tokenizer is not None,
            "mean": self.mean is not None,
            "channels": self.channels != pixels.RGB,
            "samples": self.samples is not None,
            "input_seconds": self.input_seconds is not None,
            "input_steps": bool(self.input_steps),
        }
        return [name for name, is_given in given.items() if is_given]

    def to_dict(self) -> dict[str, Any]:
        """Return the request as plain values, for reports and provenance."""
        return as_plain(self)
