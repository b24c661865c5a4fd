"""A/B experiments between two versions of an endpoint, with anytime-valid inference."""
