"""`ml runs`: the runs of a backend."""
