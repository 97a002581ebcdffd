"""Labelled samples of a request: a quarter decides, the rest may be shown to the folds."""

from dataclasses import dataclass

import numpy as np

from onnxfold.budget.costs.macs import forward_cost
from onnxfold.config import FoldConfig
from onnxfold.errors import ConfigError
from onnxfold.graph.run.session import fixed_batch, in_batches, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_inputs import LABELS, checked_labels, input_infos, select_samples
from onnxfold.inputs.given_samples import given_samples
from onnxfold.inputs.input_plan import InputRequest, planned_samples
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.statistics.activations import Batches

#: The part of the samples that decides where folds are shown the others.
HELD_OUT = 4
_BATCH = 64


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled samples, split."""

    #: Samples that folds may be fitted on; None where the request names other inputs, and all samples decide.
    shown: dict[str, Array] | None
    held_out: Batches  # batches of the samples that decide
    labels: Array  # classes of the samples that decide


def labelled_samples(view: GraphView, config: FoldConfig) -> Labelled:
    """Return the labelled samples of a request.

    Which samples decide is drawn with the request's seed: a file may be sorted by class. Of the others, no more are
    shown to the folds than would be generated.
    """
    assert config.data is not None
    infos = input_infos(view)
    samples = given_samples(infos, config.data, None, most=0, interface=token_interface(view))
    if samples.labels is None:
        raise ConfigError(f"the data has no labels: name their array {' or '.join(map(repr, LABELS))}")
    count = sample_count(samples.arrays)
    labels = checked_labels(samples.labels, count)
    fixed = fixed_batch(info.shape for info in infos)
    if config.calibration is not None or config.inputs != "auto":
        return Labelled(None, list(in_batches(samples.arrays, fixed or _BATCH)), labels)
    batch = fixed or 1
    held = count // HELD_OUT // batch * batch
    if not held:
        raise ConfigError(f"{count} samples are too few to hold a quarter of them out: give more")
    order = np.random.default_rng(config.seed).permutation(count)
    most, _ = planned_samples(view, forward_cost(view), InputRequest(config.samples))
    shown = min(max(most // batch, 1), (count - held) // batch) * batch
    decide, rest = np.sort(order[:held]), np.sort(order[held : held + shown])
    held_out = list(in_batches(select_samples(samples.arrays, decide), fixed or _BATCH))
    return Labelled(select_samples(samples.arrays, rest), held_out, labels[decide])
