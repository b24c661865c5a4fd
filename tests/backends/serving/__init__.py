"""The servers of this machine and their router."""
