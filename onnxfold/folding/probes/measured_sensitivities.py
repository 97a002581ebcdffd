"""The sensitivities of all groups of a graph, each measured on as many inputs as it takes.

Most groups are read at every position, and a few samples tell what they do. Of rare words, whose rows are tables of
their own, a few samples hold almost none: these groups, of which there are few, are tried on more.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from onnxfold.budget.costs.macs import count_token_macs
from onnxfold.channels.group import FoldGroup
from onnxfold.folding.probes.sensitivity import Probe, sensitivities
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.language.fitted import QUERIES_ELSEWHERE, RARE_ELSEWHERE
from onnxfold.progress import Progress, part_of

#: Samples of a probe.
SAMPLES = 8
#: Most multiply-accumulates of one network on the inputs of rare words.
_COST = 3e11


def measured_sensitivities(
    view: GraphView, groups: Sequence[FoldGroup], inputs: ModelInputs, probes: Mapping[int, Probe], progress: Progress
) -> Matrix:
    """Return the sensitivity of every group, shape (n_groups,); 1 where nothing could be measured."""
    parts = {i: probe for i, probe in probes.items() if groups[i].is_part}
    others = {i: probe for i, probe in probes.items() if i not in parts}
    few, is_text = inputs.few_samples(SAMPLES), not inputs.facts.are_words_alone
    texts = (list(_affordable(view, inputs)) or [few]) if parts else []
    count = len(texts) + bool(others)

    def walked(walk: int, batch: dict[str, Array], tried: Mapping[int, Probe]) -> Matrix:
        return sensitivities(view, groups, batch, tried, part_of(progress, walk, count), tokens=inputs.tokens.answers)

    by_group = walked(0, few, others) if others else np.ones(len(groups))
    if parts:
        each = [walked(walk, batch, parts) for walk, batch in enumerate(texts, count - len(texts))]
        of_parts: Matrix = np.mean(each, axis=0)
        by_group[list(parts)] = of_parts[list(parts)] * (RARE_ELSEWHERE if is_text else 1.0)
    if is_text:
        by_group[[i for i, group in enumerate(groups) if group.is_between_factors]] *= QUERIES_ELSEWHERE
    return by_group


def _affordable(view: GraphView, inputs: ModelInputs) -> Iterator[dict[str, Array]]:
    """Yield batches that a network reads at no more than some cost."""
    left, each = _COST, max(float(count_token_macs(view)), 1.0)
    for batch in inputs.batches:
        tokens = max((values.size for values in batch.values() if values.dtype.kind in "iu"), default=1)
        left -= each * tokens
        if left < 0.0:
            return
        yield batch
