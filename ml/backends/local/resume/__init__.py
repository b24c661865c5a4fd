"""Going on where a killed or interrupted run stood."""
