"""Runs on this machine: their folders, records and lineage, and the store that lists them."""
