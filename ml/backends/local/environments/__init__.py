"""Azure ML's environments here: the packages that one asks for, and those that a job gets."""
