"""MLflow's part in a run, and the fast way into its store."""
