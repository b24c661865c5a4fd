"""The `ml` command: one module a noun; parse, call, print, no logic."""
