"""The checks of a spec, and the rules that they apply."""
