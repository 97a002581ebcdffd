"""Documentation; the reference pages are written by :mod:`docs.generate`."""
