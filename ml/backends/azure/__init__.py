"""The Azure backend: runs plans in an Azure Machine Learning workspace."""
