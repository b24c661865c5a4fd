"""Distributions, samplers and early termination, by Azure ML's definitions."""
