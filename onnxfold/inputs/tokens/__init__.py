"""Inputs of language models: which inputs take tokens, and token ids without data."""
