"""The step before a fold that keeps some words of a language model: of the model, its tokenizer, its configurations."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from onnxfold.config import FoldConfig
from onnxfold.errors import ConfigError, NothingToFoldError, UnsupportedModelError, VerificationError
from onnxfold.files import write
from onnxfold.folders import ModelFolder, folder_of, ids_named, with_vocabulary
from onnxfold.folding.open_model import bytes_of, stored_size
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.files.save import save
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import Array
from onnxfold.inputs.images.synthetic import noise_inputs
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.kept_tokens import kept_ids, trimmed_content
from onnxfold.inputs.tokens.tokenizer import NAME, read_tokenizer
from onnxfold.passes.merge.trim_vocabulary import TrimVocabulary
from onnxfold.progress import Progress
from onnxfold.report import ModelSize

#: Sequences that both models read, and the largest difference of their answers, as a part of the largest answer.
_SAMPLES, _ROUNDING = 2, 1e-5


@dataclass(frozen=True, eq=False)
class FoldedFile:
    """The model that is folded: as it was given, or with fewer words."""

    source: ModelLike  # the model as it was given
    model: ModelLike  # the model that is folded
    folder: ModelFolder | None  # the folder whose copy the result goes to
    size: ModelSize | None = None  # the size of the model as it was given, where words went
    notes: tuple[str, ...] = ()


def trim_vocabulary(model: ModelLike, config: FoldConfig, progress: Progress) -> FoldedFile:
    """Return a model with the words that a request keeps, in a folder of its own; it answers as before for these."""
    folder = folder_of(model)
    keep = config.vocabulary
    if keep is None:
        file = model if folder is None else folder.model
        return FoldedFile(file, file, folder)
    if folder is None:
        raise ConfigError("vocabulary changes a model, its tokenizer and its configurations: give the folder of all")
    progress("load", 0, 0)
    view = load(folder.model)
    interface = token_interface(view)
    if interface is None or interface.ids is None or not interface.table.is_known:
        raise UnsupportedModelError(f"vocabulary: '{folder.model}' looks no token ids up in a table of words")
    size, words = stored_size(view, bytes_of(folder.model, view)), interface.vocabulary
    tokenizer = read_tokenizer(folder.root / NAME)
    kept = kept_ids(tokenizer, keep, words, ids_named(folder))
    if len(kept) == words:
        raise NothingToFoldError(f"vocabulary={config.vocabulary} keeps all {words:,} words: keep fewer")
    new = {old: i for i, old in enumerate(kept.tolist())}
    content = trimmed_content(tokenizer.content, new)
    TrimVocabulary(interface.ids.name, kept, words)(view)
    draft = TemporaryDirectory(prefix="onnxfold-")
    path = Path(draft.name) / folder.place.name
    save(view, path, external_data=folder.has_weight_files)
    copy, notes = with_vocabulary(folder, content, new)
    write({path.with_name(NAME): copy.edited[Path(NAME)]})
    if config.verify:
        before, after = Session(folder.model), Session(path)
        feeds = noise_inputs(after.inputs, samples=_SAMPLES, seed=config.seed, view=view)
        old = feeds | {interface.ids.name: kept[feeds[interface.ids.name]].astype(interface.ids.dtype)}
        for name, was, is_now in zip(after.output_names, before.run(old), after.run(feeds), strict=True):
            _require_same(name, was[..., kept] if was.shape[-1] == words else was, is_now)
    answers = "answer as before; what else is measured is beside the model with these words"
    note = f"vocabulary: {len(kept):,} of {words:,} words stay, and {answers if config.verify else 'nothing ran'}"
    return FoldedFile(folder.model, path, replace(copy, draft=draft), size, (note, *notes))


def _require_same(name: str, before: Array, after: Array) -> None:
    """Refuse an output that changed by more than rounding."""
    most = _ROUNDING * float(np.abs(before).max(initial=0.0))
    if before.shape != after.shape or not np.allclose(before, after, rtol=0.0, atol=most, equal_nan=True):
        raise VerificationError(
            f"vocabulary: output '{name}' differs with fewer words: the model must keep all of them"
        )
