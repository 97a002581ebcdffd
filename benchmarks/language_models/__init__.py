"""Language models: what is left of them after folds and after their rivals."""
