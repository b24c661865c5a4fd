"""Who carries out a plan: this machine (`local`) or Azure ML (`azure`)."""
