"""A copy of `code:` for every content."""
