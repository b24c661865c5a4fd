"""The stack files: what may stand in them, the checks, and the names that follow from them."""
