"""The models that a search fits: numeric tables, model families, and class balancing."""
