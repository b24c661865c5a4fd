"""The evidence of a model version: assembled, recomputed and verified."""
