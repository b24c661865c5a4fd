"""The traffic router: one process an endpoint, in front of its blue and green servers."""
