"""Costs of a model, and the choice of widths that meet a budget."""
