"""Reference pages, generated from the code at build time."""
