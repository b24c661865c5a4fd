"""Write projects for `ml new`, and check their metrics for `ml check`."""
