"""An AutoML job on this machine: a sweep whose trials it chooses.

`lowering` makes the sweep; the other modules are the code of its trials, and travel to the node.
"""
