"""Run commands, sweeps and pipelines, and resume stopped ones."""
