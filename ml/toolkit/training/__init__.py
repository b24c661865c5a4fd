"""What fits, times and logs a training run."""
