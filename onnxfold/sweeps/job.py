"""Jobs: one fold and what is measured of it, as a value with a key.

The key is the hash of everything that decides the result: contents by their hashes, the goal, the method, the seed, all
other options, and the versions of this tool and of the libraries it computes with. So a sweep that is started again
finds what it has, and finds nothing that another version made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from onnxfold._version import __version__
from onnxfold.config import INT8, OPTIONS, FoldConfig
from onnxfold.config.option import INPUTS
from onnxfold.files.cache import code_version
from onnxfold.folding.methods import find_method
from onnxfold.sweeps.content import Content
from onnxfold.sweeps.row import hash_of, key_of

#: Roles of contents; those after the first two are options of a fold that are paths.
MODEL, DATA, PATHS = "model", "data", ("calibration", "tokenizer")
#: Options that decide what the network is run on, beside the seed.
_ABOUT_INPUTS = [
    *(name for name, option in OPTIONS.items() if option.group == INPUTS and option.in_sweep and option.reads is None),
    "max_memory",
]
_LIBRARIES = ("numpy", "onnx", "onnxruntime", "torch")


@cache
def versions() -> dict[str, str]:
    """Return the versions that decide results: of this tool, its code, and the libraries that it computes with."""
    by_library = {"onnxfold": __version__, "code": code_version()[:16]}
    for name in _LIBRARIES:
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
    parity: bool = False  # whether the folded model is also exported, and compared with the export
    #: What :func:`versions` returned where the job was made.
    versions: Mapping[str, str] = field(default_factory=versions)

    @cached_property
    def setting(self) -> str:
        """Hash of everything but versions: two jobs with the same setting ask for the same."""
        return hash_of({
            "contents": {role: content.digest for role, content in self.contents.items()},
            "goal": [self.goal.name, self.goal.value], "method": self.method, "seed": self.seed,
            "options": dict(self.options), "parity": self.parity,
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
        """The job without lists of files, as a worker gets it beside the pieces of its contents."""
        return replace(self, contents={role: content.name for role, content in self.contents.items()})

    @property
    def needs_inputs(self) -> bool:
        """Whether the fold may run the network."""
        config = self.config(dict.fromkeys(self.contents, Path()))
        chosen = find_method(self.method, cluster=config.cluster, repair=config.repair)
        return chosen.needs_inputs or config.is_global or config.dtype == INT8

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
        return f"{stem}-{goal}-{self.method}-seed{self.seed}-{self.key[:8]}"
