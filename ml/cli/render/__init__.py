"""Print the tables, progress and JSON of the commands."""
