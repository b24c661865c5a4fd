"""Which trial of a sweep is the best candidate."""
