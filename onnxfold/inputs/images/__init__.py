"""Images: generated, and from a user's files."""
