"""What a model costs, and how widths are chosen to meet a budget."""
