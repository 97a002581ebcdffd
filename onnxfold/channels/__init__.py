"""What couples with what: channel rules per operator, one walk, fold groups."""

from onnxfold.channels.group import ChannelAnalysis, FoldGroup, Member
from onnxfold.channels.walker import find_groups

__all__ = ["ChannelAnalysis", "FoldGroup", "Member", "find_groups"]
