"""Text that a language model writes itself, between the texts that a user gives.

What is kept of a network is chosen on what it is run on, and a few thousand words have few subjects: of other texts
more is lost than where nothing is shown. A quarter of what a model reads is therefore its own, and more of it where
little is given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from onnxfold.files import Cache
from onnxfold.inputs.input_plan import InputRequest
from onnxfold.inputs.sample_kinds import WRITTEN
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens.token_plan import planned_beside
from onnxfold.progress import Progress

if TYPE_CHECKING:
    from onnxfold.inputs.model_inputs import ModelInputs
    from onnxfold.statistics.activations import Batches


def with_own_text(
    user_inputs: ModelInputs, texts: TokenSource, requested: InputRequest, *, seed: int, cache: Cache | None,
    progress: Progress,
) -> ModelInputs:  # fmt: skip
    """Return a user's texts, and between them what the model writes; as they are where it cannot write."""
    name = None if texts.interface.ids is None else texts.interface.ids.name
    arrays = [batch[name] for batch in user_inputs.batches if name in batch]
    if name is None or not user_inputs.continues_text or any(ids.ndim != 2 for ids in arrays):
        return user_inputs
    ids = np.concatenate(arrays)
    plan = planned_beside(texts.view, texts.interface, ids.shape)
    text = None if plan is None else texts.write(plan, requested, seed=seed, cache=cache, progress=progress)
    if text is None or text.kind != WRITTEN:
        return user_inputs
    batches = spread(user_inputs.batches, texts.batches(text.ids))
    shortest = min(ids.shape[1], text.ids.shape[1])
    fronts = np.concatenate([batch[name][:, :shortest] for batch in batches])
    seen = np.concatenate([ids.ravel(), text.ids.ravel()])
    reason = f"{text.ids.size:,} tokens between them {text.reason}"
    return replace(
        user_inputs,
        batches=batches,
        reason=f"{user_inputs.reason}; {reason}" if user_inputs.reason else reason,
        short=texts.short_batch(fronts),
        words=texts.words(seen),
    )


def spread(batches: Batches, others: Batches) -> Batches:
    """Return batches with others evenly between them."""
    places = [(i + 0.5) / len(part) for part in (batches, others) for i in range(len(part))]
    together = [*batches, *others]
    return [together[i] for i in np.argsort(places, kind="stable")]
