"""How we know: mirrors the folders of the repository."""
