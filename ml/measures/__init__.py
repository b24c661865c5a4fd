"""What measures a model: metrics, intervals, fairness, leakage, and the files of an evaluation.

Projects evaluate with it on a node, and the gates compute the same numbers again. It is the
framework's: in a thin fork the gates use the wheel's, whatever the fork's own copy says.
"""
