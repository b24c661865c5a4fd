"""Run the trials of an AutoML job on a node.

`ml.backends.local.automl_sweep` compiles the job to a sweep that runs these trials.
"""
