"""The modules that a score.py may import; they travel to the node and import no other `ml` code."""
