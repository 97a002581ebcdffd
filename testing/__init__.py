"""Networks for tests and benchmarks: a zoo, random graphs, models of every rule, widening.

Not installed.
"""
