"""What runs: projects, the specs that describe their jobs, and the machinery that runs them."""
