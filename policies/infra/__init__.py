"""The CrossGuard policy pack: the rules for infrastructure, their limits and their waivers."""
