"""What the template does to the repository that it is in: new projects."""
