"""Runs on this machine: folders, records, lineage, and the store that lists them."""
