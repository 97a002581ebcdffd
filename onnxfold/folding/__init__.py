"""From scopes and a request to a folded model: methods, one graph, the search around folds, checks."""
