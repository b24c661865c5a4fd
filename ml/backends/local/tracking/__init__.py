"""MLflow's database: one writer, one reader, and its own servers."""
