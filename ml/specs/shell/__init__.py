"""Commands as bash reads them, without being run."""
