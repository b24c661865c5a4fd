"""The `ml` command: each module parses the options of a command, calls the library and prints."""
