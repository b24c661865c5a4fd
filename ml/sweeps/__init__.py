"""Sampling and early termination with Azure ML's semantics, independent of where trials run."""
