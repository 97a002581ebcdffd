"""Channel analysis: one rule per operator, one walk over the graph, fold groups."""

from onnxfold.channels.group import ChannelAnalysis, FoldGroup, Member
from onnxfold.channels.walker import find_groups

__all__ = ["ChannelAnalysis", "FoldGroup", "Member", "find_groups"]
