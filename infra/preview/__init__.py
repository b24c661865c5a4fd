"""What a merge would provision, offline: the real program, stand-in engine, policies and cost."""
