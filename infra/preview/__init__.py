"""Offline preview of the infrastructure: the real program, a stand-in engine, policies, cost."""
