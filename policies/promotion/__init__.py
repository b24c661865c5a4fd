"""Whether a model version may be promoted: the gates, the evidence and the decision."""
