"""Real files of others, folded at 30 %: which are refused, and what those that fold keep on real images."""
