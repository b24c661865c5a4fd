"""Azure ML's environments here: the packages that one declares, and those that a job gets."""
