"""The local backend: Azure ML job specs on this machine, tracked by MLflow on SQLite."""
