"""The time of a fold: by phase beside an earlier revision, and beside onnxsim's structured pruning."""
