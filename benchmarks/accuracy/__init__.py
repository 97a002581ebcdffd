"""Accuracy of folded networks: every method, partition, repair, allocation and sparsity."""
