"""Kinds of inputs that a network is run on, as rows: nothing elsewhere compares a kind with a name."""

from dataclasses import dataclass

from onnxfold.statistics.moments import NO_DOUBT, Doubt

INVERTED, LEAVES, NOISE, DATA = "deep-inversion", "dead-leaves", "noise", "data"
#: Kinds of texts: ids that the model wrote or filled in, and ids drawn one by one, by their ranks or evenly.
WRITTEN, FILLED, PRIOR, UNIFORM = "self-written text", "filled-in text", "tokens by frequency", "random tokens"
#: Dead leaves whose exposure is their own, by image, which is what a fit is shown.
EXPOSED = "exposed"
#: Of text, given or written by a model that continues it: what goes together on one text goes together less on others.
DOUBT_OF_TEXT = Doubt(0.5)
#: Of large images of a user, where trial folds are better for it: one image shows the same at many positions.
DOUBT_OF_IMAGES = Doubt(0.5)


@dataclass(frozen=True)
class SampleKind:
    """A row of :data:`SAMPLE_KINDS`."""

    is_data: bool = False  # whether they are a user's samples
    drawn_as: str = ""  # as what another seed gives others, at no cost; empty if there are no more
    are_tokens: bool = False  # whether ids were made, with or without a model
    are_words_alone: bool = False  # whether ids are drawn one by one, so that no word has to do with another
    has_data_statistics: bool = False  # whether BatchNormalizations see about the same statistics as in training
    #: How far covariances of activations may differ from those on data, as measured on networks whose data there are.
    doubt: Doubt = NO_DOUBT
    doubted_from: int = 0  # the pixels a side from which images are doubted: smaller ones go without

    @property
    def is_drawn(self) -> bool:
        """Whether there are more at no cost."""
        return bool(self.drawn_as)

    @property
    def is_inverted(self) -> bool:
        """Whether they were made from the network's own statistics."""
        return self.has_data_statistics and not self.is_data


#: With the doubt of large dead leaves, the errors that are predicted for layers of an ImageNet network are those on
#: photographs. With that of single words, sentences keep more of what a first layer does to them.
_ALONE = SampleKind(are_tokens=True, are_words_alone=True, doubt=Doubt(0.1, of_variances=True))
SAMPLE_KINDS = {
    INVERTED: SampleKind(has_data_statistics=True),
    LEAVES: SampleKind(drawn_as=EXPOSED, doubt=Doubt(0.7, of_variances=True), doubted_from=96),
    NOISE: SampleKind(drawn_as=NOISE),
    DATA: SampleKind(is_data=True, has_data_statistics=True),
    WRITTEN: SampleKind(are_tokens=True),
    FILLED: SampleKind(are_tokens=True),
    PRIOR: _ALONE,
    UNIFORM: _ALONE,
}
