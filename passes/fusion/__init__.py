"""Passes that merge operators into their neighbours and keep the function, for exports and quantisation."""
