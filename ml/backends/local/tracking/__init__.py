"""MLflow's database: a writer, a reader without MLflow, and MLflow's servers."""
