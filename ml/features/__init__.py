"""Features over time: which value of a feature was available at a time, and windows over events.

It travels to the node and into score.py, so that training and serving call the same code.
"""
