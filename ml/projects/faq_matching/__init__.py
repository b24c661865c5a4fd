"""Ranks the FAQ entries that answer a question."""
