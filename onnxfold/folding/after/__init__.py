"""Work around the fold of the channels: lossless savings, norms, training, pictures and maps."""
