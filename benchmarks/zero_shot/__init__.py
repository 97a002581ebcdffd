"""Zero-shot tasks of folded language models, beside their rivals."""
