"""Deep inversion: images that reproduce the stored statistics of the BatchNormalizations."""
