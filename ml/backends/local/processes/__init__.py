"""The processes of a run: started together, ended together, interrupted, evicted."""
