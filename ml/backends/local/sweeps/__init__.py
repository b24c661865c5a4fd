"""Sweeps: trials as runs of their own, watched while they run."""
