"""What a merge would provision, offline: the real program against a stand-in for the engine.

Not covered: the provider's own Check and Diff, state, transforms. This is no `pulumi up`.
"""
