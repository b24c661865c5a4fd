"""Sampling and early termination with Azure ML's semantics; knows nothing of where trials run."""
