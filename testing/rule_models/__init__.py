"""One small network per operator that has a channel rule.

The channels of the first Conv must come through the operator, so that folding them goes through its rule.
"""
