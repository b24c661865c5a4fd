"""The tests mirror the folders of the repository."""
