"""Doubt in inputs of every kind: how far they may differ from data, as measured on networks whose data there are."""

from onnxfold.inputs.tokens.interface import UNIFORM
from onnxfold.inputs.tokens.token_text import PRIOR
from onnxfold.statistics.shrinkage import NO_DOUBT, Doubt

#: The part of the activations' covariances that is doubtful on dead leaves of so many pixels a side: with it, the
#: errors that are predicted for layers of an ImageNet network are those on photographs. Small images go without.
_DOUBT, _LARGE = Doubt(0.7, of_variances=True), 96
#: The same for words that are drawn one by one. With it, sentences keep more of what a first layer does to them.
_DOUBT_OF_TOKENS = Doubt(0.1, of_variances=True)
#: The same for text, given or written by a model that continues it: what goes together on one text goes together less
#: on others.
_DOUBT_OF_TEXT = Doubt(0.5)


def doubt_of(kind: str, images: tuple[int, ...] | None, *, continues_text: bool) -> Doubt:
    """Return how far the covariances of activations may differ from those on data."""
    if continues_text:
        return _DOUBT_OF_TEXT
    if kind in (PRIOR, UNIFORM):
        return _DOUBT_OF_TOKENS
    return _DOUBT if images is not None and max(images[2:]) >= _LARGE else NO_DOUBT
