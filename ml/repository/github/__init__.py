"""Read and write GitHub from workflows: issues, pull requests, releases."""
