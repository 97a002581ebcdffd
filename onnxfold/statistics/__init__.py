"""Statistics of activations: observation of a network, moments of its channels."""
