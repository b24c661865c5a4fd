"""The CrossGuard pack: the rules of an environment, its limits, and the rules' waivers."""
