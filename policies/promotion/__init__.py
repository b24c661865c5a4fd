"""Whether a model version may be promoted: the gates, the evidence they read, and the decision."""
