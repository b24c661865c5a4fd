"""Pipelines: steps bound to one another, run side by side, used again when unchanged."""
