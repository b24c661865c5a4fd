"""Before the first update: would it be refused, and for what that can be known before?

Each check says ok, warns, or fails with the next thing to type. Nothing is changed.
"""
