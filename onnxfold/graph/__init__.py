"""Models as graphs: load, view, edit, run, save."""
