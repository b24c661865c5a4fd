"""`infra doctor`: would Azure refuse the next update, as far as that can be known in advance?

Each check passes, warns, or fails with the next command to type. Nothing is changed.
"""
