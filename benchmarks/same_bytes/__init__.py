"""Folds of two revisions, compared byte by byte."""
