"""Folders of language models: a model with its tokenizer and the configurations of its runtime."""

from onnxfold.folders.configs import ids_named, with_changes, with_vocabulary
from onnxfold.folders.model_folder import ModelFolder, folder_of, model_file, takes_folders

__all__ = ["ModelFolder", "folder_of", "ids_named", "model_file", "takes_folders", "with_changes", "with_vocabulary"]
