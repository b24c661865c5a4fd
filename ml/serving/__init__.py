"""Serving a model: what a score.py may import (`scoring`) and the server on this machine."""
