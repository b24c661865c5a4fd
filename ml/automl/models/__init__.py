"""The models that a search fits: rows as numbers, families and their fits, rare classes."""
