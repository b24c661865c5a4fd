"""What is known of earlier runs: found, listed, compared, traced to their data."""
