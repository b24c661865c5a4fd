"""Score card transactions for fraud; see README.md."""
