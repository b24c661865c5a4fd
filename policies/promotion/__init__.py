"""The promotion of model versions: gates, evidence and decision."""
