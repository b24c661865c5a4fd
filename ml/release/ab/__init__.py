"""A/B: an experiment between two versions of an endpoint, which may be looked at any time."""
