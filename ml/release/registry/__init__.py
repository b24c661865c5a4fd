"""The model registry and what its versions descend from."""
