"""The words of pull requests."""
