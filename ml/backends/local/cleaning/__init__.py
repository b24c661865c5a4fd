"""Disk space: what may be removed, what stays, and the limit."""
