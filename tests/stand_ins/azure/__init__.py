"""Azure Machine Learning on this machine: a test double that the unmodified SDK talks to.

It stands in for Azure Resource Manager, the workspace's control plane, run history, MLflow tracking
and the token endpoint; storage is a real Azurite. A job that is submitted really runs, through the
local backend in the stand-in's own home. Where it and Azure's documents disagree, the documents
are right. Each behaviour names its source:

- "SDK": the source of azure-ai-ml 1.35.2, which sends the request or reads the answer.
- "spec NAME": a published example of the REST API (Azure/azure-rest-api-specs).
- "docs NAME": a page below learn.microsoft.com/azure/machine-learning.
- "issue OWNER/REPOSITORY#N": an answer of the service that somebody copied into an issue.
"""
