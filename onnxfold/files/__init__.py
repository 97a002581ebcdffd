"""File input and output of all commands: checks of paths, and atomic writes."""

from onnxfold.files.atomic import explain_errors, made_folder, new_folder, replace_file, write, write_together
from onnxfold.files.cache import Cache, key_of
from onnxfold.files.claims import Output, Read, check_outputs, check_own, option_outputs
from onnxfold.files.contents import Entry, entries_of, open_regular
from onnxfold.files.targets import STDOUT, Target, reason, target_of

__all__ = [
    "STDOUT", "Cache", "Entry", "Output", "Read", "Target", "check_outputs", "check_own", "entries_of",
    "explain_errors", "key_of", "made_folder", "new_folder", "open_regular", "option_outputs", "reason", "replace_file",
    "target_of", "write", "write_together",
]  # fmt: skip
