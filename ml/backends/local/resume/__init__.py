"""Resuming a run that was killed or interrupted."""
