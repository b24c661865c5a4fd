"""Azure ML environments on this machine: compare their packages, or build them with uv."""
