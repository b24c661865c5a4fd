"""What the conversion of Azure's AutoML models runs on a node, and the trials of `ml.automl`."""
