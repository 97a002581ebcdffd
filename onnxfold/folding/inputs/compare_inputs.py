"""The choice between two ways to be shown large images, by trial folds.

Inverted images show what a network was trained on, dead leaves what all images have in common. But an inversion of
large images can go astray, and nothing in its loss tells. A few images of a user say much of the layers of one network,
and of another's too little to be trusted. So the network is folded on three quarters of either, and what its answers
lose is measured on the other quarters of both. That whose fold loses less is taken.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onnxfold.budget.width_request import width_request
from onnxfold.config import FoldConfig
from onnxfold.errors import OnnxFoldError, VerificationError
from onnxfold.fidelity.measures import fidelity
from onnxfold.files import Cache, key_of
from onnxfold.folding.fold_model import fold_model
from onnxfold.folding.methods import find_method
from onnxfold.folding.one_graph import with_candidates
from onnxfold.folding.open_model import OpenedModel
from onnxfold.folding.prepare import prepare
from onnxfold.graph.files.provenance import fingerprint
from onnxfold.graph.files.save import to_model
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import raw_bytes
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import LEAVES, SAMPLE_KINDS
from onnxfold.inputs.tokens.cache_heads import comparable_outputs
from onnxfold.progress import Progress, silent

#: Part of the weights that a trial removes: enough that the kinds differ.
_REMOVED = 0.3
_CACHED = "comparisons"


def are_large(inputs: ModelInputs) -> bool:
    """Whether inputs are images so large that an inversion may go astray, and that few of a user's may mislead."""
    return inputs.pixels >= SAMPLE_KINDS[LEAVES].doubted_from


def compare_inputs(
    opened: OpenedModel, kinds: Sequence[ModelInputs], seed: int, cache: Cache, progress: Progress
) -> ModelInputs:
    """Return the inputs whose fold loses less on both kinds; the first, with the reason, where that cannot be tried."""
    hashed = hashlib.sha256()  # one array after the other: all of them may be large
    for values in (values for inputs in kinds for batch in inputs.batches for values in batch.values()):
        hashed.update(raw_bytes(values))
    key = key_of({"model": fingerprint(opened.view), "inputs": hashed.digest(), "seed": str(seed)})
    losses = cache.read(_CACHED, key, lambda file: _checked(np.frombuffer(file).tolist(), len(kinds)))
    if losses is None:
        try:
            losses = _losses(opened, kinds, seed, progress)
        except OnnxFoldError as error:
            return replace(kinds[0], reason=f"{kinds[0].reason}; not compared with {kinds[-1].called}: {error}")
        cache.put(_CACHED, key, np.array(losses).tobytes())
    lost = ", ".join(f"on {inputs.called} {loss:.2g}" for inputs, loss in zip(kinds, losses, strict=True))
    best = kinds[int(np.argmin(losses))]
    return replace(best, reason=f"{best.reason}; loss of a fold at {_REMOVED:.0%}: {lost}")


def _checked(losses: list[float], count: int) -> list[float]:
    if len(losses) != count or not all(loss >= 0.0 for loss in losses):
        raise ValueError("it holds no losses")
    return losses


def _losses(opened: OpenedModel, kinds: Sequence[ModelInputs], seed: int, progress: Progress) -> list[float]:
    """Return the loss of the answers by the fold on each kind: the mean over held-out inputs of all kinds."""
    parts = [inputs.split() for inputs in kinds]
    session = Session(opened.source)
    names = session.output_names = comparable_outputs(session.output_names, opened.view.output_names)
    wanted = [session.run_all(held_out.batches) for _, held_out in parts]
    losses = []
    for done, (seen, _) in enumerate(parts):
        progress("compare inputs", done, len(parts))
        folded = Session(to_model(_fold(opened, seen, seed)))
        folded.output_names = names
        lost: list[float] = []
        for (_, held_out), reference in zip(parts, wanted, strict=True):
            answers = folded.run_all(held_out.batches)
            try:
                report = fidelity(
                    names, reference, answers, inputs=held_out.kind, view=opened.view, samples=held_out.samples
                )
            except VerificationError:  # NaN or infinite where the original gives numbers
                lost.append(np.inf)
                continue
            each = [o.relative_error if o.kl_divergence is None else o.kl_divergence for o in report.outputs]
            lost.append(float(np.mean(each)) if each else np.inf)
        losses.append(float(np.nan_to_num(np.mean(lost), nan=np.inf, posinf=np.inf)))
    return losses


def _fold(opened: OpenedModel, seen: ModelInputs, seed: int) -> GraphView:
    """Return a trial fold by the default method."""
    config = FoldConfig(sparsity=_REMOVED)
    method = find_method(config.method).form(is_language=False)
    prepared = with_candidates(prepare(opened.copy(), method, seen, seed)).trial()
    adds_biases = method.repair_row.adds_biases
    request = width_request(prepared.opened.graphs, config, opened.size, adds_biases=adds_biases)
    return fold_model(prepared, request, config, silent).view
