"""Start trials of plain Python commands by forking a process with loaded imports."""
