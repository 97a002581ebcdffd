"""More inputs of the kind that a fold chose, for its refinement, which learns single samples and not a covariance."""

from dataclasses import replace

from onnxfold.config import NO_REFINEMENT, FoldConfig
from onnxfold.folding.after.refine_samples import count_tokens
from onnxfold.folding.inputs.choose_inputs import inputs_by_seed
from onnxfold.graph.files.load import ModelLike
from onnxfold.inputs.input_plan import INVERTED as FEW_INVERTED
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.inputs.sample_kinds import INVERTED
from onnxfold.inputs.tokens.language_model import ANCESTRAL
from onnxfold.progress import Progress

#: Inverted images that a refinement is shown.
_SHOWN = 512
#: How many times as much as for the fold a language model writes, for which that takes two minutes at most.
_TURNS = 7


def with_more_samples(
    original: ModelLike, inputs: ModelInputs, tokens: int, config: FoldConfig, progress: Progress
) -> ModelInputs:
    """Return the inputs of a fold and, behind them, more of their kind: inverted images, or texts of so many tokens.

    Texts that are shown again are learned by heart (SmolLM2 at 20 % lost .07 there in place of .24), and the fold's own
    ones were fitted. So there are at least as many others, ancestral: drawn words taught nothing about other text.
    """
    if config.samples is not None:
        return inputs
    request, turns = replace(config, refine=NO_REFINEMENT, refine_steps=None, torch_device="auto"), 1
    if inputs.facts.are_tokens:
        lacking = max(-(-tokens // count_tokens(inputs)) - 1, 1)
        turns = lacking if inputs.facts.are_words_alone else min(lacking, _TURNS)
    elif inputs.facts.is_inverted and FEW_INVERTED <= inputs.distinct < _SHOWN:
        request = replace(request, inputs=INVERTED, samples=_SHOWN - inputs.distinct)
    else:
        return inputs
    seeds = range(config.seed + 1, config.seed + 1 + turns)
    made = [chosen.inputs for chosen in inputs_by_seed(original, request, seeds, progress, ANCESTRAL)]
    alike = [more for more in made if more is not None and more.kind == inputs.kind and not more.cut]
    return replace(inputs, batches=[batch for some in (inputs, *alike) for batch in some.batches])
