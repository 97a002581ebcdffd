"""Networks of one layout become a single exact graph: matched, stacked, with joined heads."""
