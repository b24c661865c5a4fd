"""Parallel jobs: data divided into mini-batches and handed to processes."""
