"""Code that manages the repository itself: affected projects, new projects, forks, GitHub."""
