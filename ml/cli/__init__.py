"""The `ml` command: each module parses the options of one noun, calls the library and prints."""
