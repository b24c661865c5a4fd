"""All that a score.py may import; it travels to the node and imports no other part of `ml`."""
