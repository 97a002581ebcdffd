"""Tests of merging."""
