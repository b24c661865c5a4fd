"""The backends, which run plans: this machine (`local`) or Azure ML (`azure`)."""
