"""Random ONNX graphs: seeded, valid, small, and built from every operator that has a channel rule.

The axis of the batch comes first in every tensor of the pool and is left out of the tracked shapes. Domains are kept
safe for any values (Log of |x| + c, Asin of 0.9 tanh), so that a fold may not make an output infinite.
"""
