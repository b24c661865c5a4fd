"""The traffic router: one process per endpoint, in front of its blue and green servers."""
