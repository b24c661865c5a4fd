"""Whether an environment may be so: rules, limits and waivers; `__main__` alone is the pack."""
