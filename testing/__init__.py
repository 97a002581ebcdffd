"""What tests and benchmarks build networks with: a zoo, random graphs, models of every rule, widening.

Not installed.
"""
