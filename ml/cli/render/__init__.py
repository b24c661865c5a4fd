"""What the commands print: tables, progress and JSON."""
