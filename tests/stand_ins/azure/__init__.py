"""A stand-in for Azure Machine Learning on this machine, for use with the unmodified SDK.

It implements Azure Resource Manager, the workspace's control plane, run history, MLflow tracking
and the token endpoint; storage is a real Azurite. Submitted jobs run by the local backend in the
stand-in's own home. If it contradicts Azure's documentation, the documentation is right. Docstrings
cite the source of a behaviour:

- "SDK": the source of azure-ai-ml 1.35.2, which sends the request or reads the response.
- "spec NAME": a published example of the REST API (Azure/azure-rest-api-specs).
- "docs NAME": a page below learn.microsoft.com/azure/machine-learning.
- "issue OWNER/REPOSITORY#N": a response of the service that somebody copied into an issue.
"""
