"""Work after the fold of the channels: training."""
