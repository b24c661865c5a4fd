"""A/B experiments between two versions of an endpoint, valid at every look."""
