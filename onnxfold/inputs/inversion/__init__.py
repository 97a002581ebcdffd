"""Deep inversion: images that give the statistics that the BatchNormalizations store."""
