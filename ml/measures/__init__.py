"""Evaluate models: metrics, intervals, fairness, leakage, and the files of an evaluation.

Projects evaluate with it on a node, and the gates recompute the same numbers. It belongs to the
framework: in a thin fork the gates use the wheel's version, not the fork's own copy.
"""
