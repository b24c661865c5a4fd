"""What workflows read from GitHub and write there: issues, pull requests, releases."""
