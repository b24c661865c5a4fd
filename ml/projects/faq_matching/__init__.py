"""Rank the FAQ entries that answer a question."""
