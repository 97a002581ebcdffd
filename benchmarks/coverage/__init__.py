"""Fraction of published architectures that folds, in every form that torch exports."""
