"""Shared modules: errors, YAML with lines, typed settings, atomic files, the home folder."""
