"""File input and output of all commands: checks of paths, and atomic writes."""

from onnxfold.files.atomic import explained, made_folder, new_folder, part_folder, replace_by, replacing, write, writing
from onnxfold.files.cache import Cache, key_of
from onnxfold.files.claims import Output, Read, check_outputs, check_own, given
from onnxfold.files.contents import Entry, entries_of, open_regular
from onnxfold.files.targets import STDOUT, Target, check_ending, is_disk_full, reason, target_of

__all__ = [
    "STDOUT",
    "Cache",
    "Entry",
    "Output",
    "Read",
    "Target",
    "check_ending",
    "check_outputs",
    "check_own",
    "entries_of",
    "explained",
    "given",
    "is_disk_full",
    "key_of",
    "made_folder",
    "new_folder",
    "open_regular",
    "part_folder",
    "reason",
    "replace_by",
    "replacing",
    "target_of",
    "write",
    "writing",
]
