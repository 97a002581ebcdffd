"""Parts of other tools' workflows; each module imports its tool, which nothing else here does."""
