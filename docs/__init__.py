"""Documentation; :mod:`docs.generate` writes the reference pages."""
