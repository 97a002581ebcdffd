"""Many folds of several models, on the cores of this machine or on a cluster, and the choice among them."""
