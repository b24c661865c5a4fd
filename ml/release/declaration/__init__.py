"""Declaration."""
