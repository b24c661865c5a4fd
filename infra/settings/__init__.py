"""The stack files: their schema, the checks, and the resource names derived from them."""
