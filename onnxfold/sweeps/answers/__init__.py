"""Answers from the results of a sweep: a choice, a front, a summary."""
