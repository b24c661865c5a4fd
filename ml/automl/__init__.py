"""The code of an AutoML job's trials: it travels to the node.

`ml.backends.local.automl_sweep` compiles the job to the sweep that runs them.
"""
