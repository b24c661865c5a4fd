"""Trials of plain Python commands, forked from a process that has their imports loaded."""
