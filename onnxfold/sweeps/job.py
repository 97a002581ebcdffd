"""Jobs: one fold and what is measured of it, as a value with a key.

The key is the hash of everything that decides the result: contents by their hashes, the goal, the method, the seed, all
other options, and the versions of this tool and of the libraries it computes with. So a sweep that is started again
finds what it has, and finds nothing that another version made.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

from onnxfold._version import __version__
from onnxfold.config import INT8, NO_REFINEMENT, OPTIONS, FoldConfig
from onnxfold.config.goals import OF_REFINEMENT
from onnxfold.config.option import INPUTS
from onnxfold.errors import ConfigError
from onnxfold.files.cache import DISTRIBUTIONS, code_version
from onnxfold.folders import model_file
from onnxfold.folding.fold_task import check_request
from onnxfold.folding.methods import find_method
from onnxfold.graph.files.load import load
from onnxfold.inputs.given_inputs import require_samples
from onnxfold.sweeps.content import Content, content_of
from onnxfold.sweeps.row import hash_of, key_of

#: Roles of contents; those after the first two are options of a fold that are paths.
MODEL, DATA, PATHS = "model", "data", ("calibration", "tokenizer")
#: Options that decide what the network is run on, beside the seed.
_ABOUT_INPUTS = [
    *(name for name, option in OPTIONS.items() if option.group == INPUTS and option.in_sweep and option.reads is None),
    "max_memory",
]


@cache
def versions() -> dict[str, str]:
    """Return the versions that decide results: of this tool, its code, and the libraries that it computes with."""
    by_library = {"onnxfold": __version__, "code": code_version()[:16]}
    for name in DISTRIBUTIONS:
        try:
            by_library[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            by_library[name] = ""
    return by_library


@dataclass(frozen=True)
class Goal:
    """How far a fold goes."""

    name: str  # A field of FoldConfig, such as 'sparsity' or 'max_macs'
    value: float | str

    def __str__(self) -> str:
        shown = f"{self.value:g}" if isinstance(self.value, float) else self.value
        return f"{self.name.removeprefix('max_').replace('_', ' ')} {shown}"


@dataclass(frozen=True)
class Job:
    """One combination."""

    model: str  # path of the model, as it was given
    goal: Goal
    method: str  # A row of :data:`onnxfold.folding.methods.METHODS`
    seed: int  # seed of everything random
    contents: Mapping[str, Content]
    options: Mapping[str, Any] = field(default_factory=dict)  # further fields of FoldConfig
    #: What :func:`versions` returned where the job was made.
    versions: Mapping[str, str] = field(default_factory=versions)

    @cached_property
    def setting(self) -> str:
        """Hash of everything but versions: two jobs with the same setting ask for the same."""
        return hash_of({
            "contents": {role: content.digest for role, content in self.contents.items()},
            "goal": [self.goal.name, self.goal.value], "method": self.method, "seed": self.seed,
            "options": dict(self.options),
        })  # fmt: skip

    @cached_property
    def key(self) -> str:
        """Hash of everything that decides the result."""
        return key_of(self.setting, self.versions)

    @cached_property
    def inputs_key(self) -> str:
        """Hash of the options that decide the inputs of the fold; jobs with the same hash share them."""
        kind = self.options.get("inputs", "auto")
        return hash_of({
            "contents": {role: content.digest for role, content in self.contents.items() if role != DATA},
            "kind": find_method(self.method).inputs if kind == "auto" else kind, "seed": self.seed,
            "options": {name: self.options.get(name) for name in _ABOUT_INPUTS},
        })  # fmt: skip

    @property
    def sent(self) -> "Job":
        """The job without lists of files, which may be long, as a worker gets it beside the pieces of its contents."""
        return replace(self, contents={role: replace(content, files=()) for role, content in self.contents.items()})

    @property
    def needs_inputs(self) -> bool:
        """Whether the fold may run the network."""
        config = self.config(dict.fromkeys(self.contents, Path()))
        chosen = find_method(self.method, cluster=config.cluster, repair=config.repair)
        return chosen.needs_inputs or config.is_global or config.dtype == INT8 or config.refines

    def config(self, paths: Mapping[str, Path]) -> FoldConfig:
        """Return the request of the fold, with the paths of contents by their roles."""
        files: dict[str, Any] = {role: str(paths[role]) for role in PATHS if role in paths}
        options = {self.goal.name: self.goal.value, "method": self.method, "seed": self.seed, **self.options, **files}
        return FoldConfig(cache=None, **options)

    @property
    def name(self) -> str:
        """A name for its result, which no other job has."""
        stem = Path(self.contents[MODEL].main).stem if self.model.lower().endswith(".onnx") else Path(self.model).name
        goal = "".join(c if c.isalnum() or c in ".-" else "-" for c in str(self.goal))
        refined = f"-refine-{self.options['refine']}" if "refine" in self.options else ""
        return f"{stem}-{goal}-{self.method}{refined}-seed{self.seed}-{self.key[:8]}"


_MOST_VALUES = 10_000
DEFAULT_GOALS = tuple(Goal("sparsity", step / 10) for step in range(1, 10))


@dataclass(frozen=True)
class SweepRequest:
    """The models, goals, methods, seeds and refinements of a sweep, and the options that all its folds share."""

    models: tuple[Path, ...]
    goals: tuple[Goal, ...] = DEFAULT_GOALS
    methods: tuple[str, ...] = ("fold-ls",)
    seeds: int = 1  # the seeds are 0, 1, ... below this
    #: Fields of FoldConfig that all folds share; paths of `calibration` and `tokenizer` among them.
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Path | None = None  # labelled samples to measure accuracy and agreement on
    refinements: tuple[str, ...] = (NO_REFINEMENT,)

    def jobs(self) -> list[Job]:
        """Return all combinations, each once, those of a model beside each other; everything given is checked."""
        if self.data is not None:
            require_samples(self.data, scaled=False)
        for model in dict.fromkeys(self.models):
            load(model_file(model))
        shared = {role: Path(self.options[role]) for role in PATHS if self.options.get(role) is not None}
        if self.data is not None:
            shared[DATA] = self.data
        options = {n: v for n, v in self.options.items() if n not in PATHS and v is not None}
        refinements = self._refined(options)
        for method, refined, goal in product(self.methods, refinements, self.goals):  # every fold would refuse these
            check_request(Job("", goal, method, 0, {}, refined).config(shared))
        contents = {role: content_of(path) for role, path in shared.items()}
        models = {model: content_of(model) for model in dict.fromkeys(self.models)}
        made = [
            Job(str(model), goal, method, seed, {MODEL: models[model], **contents}, refined)
            for model, seed, method, refined, goal in product(
                models, range(self.seeds), self.methods, refinements, self.goals
            )
        ]
        return list({job.key: job for job in made}.values())

    def _refined(self, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the options beside every refinement; beside none, they are those of a sweep that does not name it."""
        without = dict(options)
        if any(value != NO_REFINEMENT for value in self.refinements):
            without = {name: value for name, value in options.items() if name not in OF_REFINEMENT}
        return [without if value == NO_REFINEMENT else {**options, "refine": value} for value in self.refinements]


def parse_numbers(text: str) -> tuple[float, ...]:
    """Return numbers: a list such as '0.25,0.5', ranges 'first:last:step', or both; the last one is part of a range."""
    values: list[float] = []
    for part in text.split(","):
        try:
            numbers = [float(number) for number in part.split(":")]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
            raise ConfigError(f"'{text}' is no list of numbers: give 0.25,0.5 or a range such as 0.1:0.9:0.1")
        values += numbers if len(numbers) == 1 else _range(part, *numbers)
    return tuple(dict.fromkeys(values))


def _range(text: str, first: float, last: float, step: float) -> list[float]:
    count = math.floor((last - first) / step + 1e-9) + 1 if step > 0 else 0
    if not 0 < count <= _MOST_VALUES:
        raise ConfigError(f"'{text}' is no range: give first:last:step, with a step above 0 and last above first")
    return [round(first + i * step, 12) for i in range(count)]


def goals_of(values: Mapping[str, str | Sequence[str]]) -> tuple[Goal, ...]:
    """Return one goal per value of any option; sparsities from 0.1 to 0.9 where none is given."""
    goals = [
        Goal(name, value)
        for name, listed in values.items()
        for value in (parse_numbers(listed) if isinstance(listed, str) else dict.fromkeys(listed))
    ]
    return tuple(goals) or DEFAULT_GOALS
