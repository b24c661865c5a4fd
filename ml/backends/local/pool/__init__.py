"""Warm interpreters: trials of plain Python commands are forked, not started."""
