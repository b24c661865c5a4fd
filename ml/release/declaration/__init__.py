"""release.yml: which version serves in which environment."""
