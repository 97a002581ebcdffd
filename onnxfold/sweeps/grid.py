"""The request of a sweep, and the jobs that it stands for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from onnxfold.budget.objectives import find_objective
from onnxfold.budget.width_request import requested_limits
from onnxfold.errors import ConfigError
from onnxfold.folders import model_file
from onnxfold.folding.inputs.choose_inputs import require_given
from onnxfold.folding.methods import find_method
from onnxfold.graph.files.load import load
from onnxfold.inputs.arrays import require_samples
from onnxfold.sweeps.content import content_of
from onnxfold.sweeps.job import DATA, MODEL, PATHS, Goal, Job

_MOST_VALUES = 10_000
DEFAULT_GOALS = tuple(Goal("sparsity", step / 10) for step in range(1, 10))


@dataclass(frozen=True)
class SweepRequest:
    """The models, goals, methods and seeds of a sweep, and the options that all its folds share."""

    models: tuple[Path, ...]
    goals: tuple[Goal, ...] = DEFAULT_GOALS
    methods: tuple[str, ...] = ("fold-ls",)
    seeds: int = 1  # the seeds are 0, 1, ... below this
    #: Fields of FoldConfig that all folds share; paths of `calibration` and `tokenizer` among them.
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Path | None = None  # labelled samples to measure accuracy and agreement on
    parity: bool = False  # whether every folded model is also exported and compared with the export

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
        self._check(options, shared)
        contents = {role: content_of(path) for role, path in shared.items()}
        models = {model: content_of(model) for model in dict.fromkeys(self.models)}
        made = [
            Job(str(model), goal, method, seed, {MODEL: models[model], **contents}, options, self.parity)
            for model, seed, method, goal in product(models, range(self.seeds), self.methods, self.goals)
        ]
        return list({job.key: job for job in made}.values())

    def _check(self, options: Mapping[str, Any], shared: Mapping[str, Path]) -> None:
        """Refuse options at once that every fold would refuse."""
        for method, goal in product(self.methods, self.goals):
            config = Job("", goal, method, 0, {}, options).config(shared)
            find_method(config.method, cluster=config.cluster, repair=config.repair)
            requested_limits(config)
            find_objective(config.objective)
            require_given(config)


def parse_numbers(text: str) -> tuple[float, ...]:
    """Return numbers: a list such as '0.25,0.5', ranges 'first:last:step', or both; the last one is part of a range.

    Examples
    --------
    >>> parse_numbers("0.1:0.5:0.2,0.9")
    (0.1, 0.3, 0.5, 0.9)
    """
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
