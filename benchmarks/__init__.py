"""Benchmarks of speed and quality, each against a peer in the same run. Tests assert no times."""
