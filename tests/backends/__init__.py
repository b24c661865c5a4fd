"""Backends: one contract for all, and what is particular to this machine."""
