"""Jobs that run: commands, sweeps and pipelines, and how they are resumed."""
