"""Small models with their serving code, registered in a backend and ready to be deployed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ml.backends import snapshot as snapshots
from ml.backends.azure.backend import AzureBackend
from ml.backends.base import Backend
from ml.backends.endpoints import ModelDeployment
from ml.backends.model_registry import model_folder
from ml.release.declaration.release_file import Strategy
from ml.serving.scoring.manifest import folder_digest, write_manifest
from tests.release.canary.greens import SAMPLES, script
from tests.shared import bring
from tests.stand_ins.azure.running import provision

__all__ = ["QUICK", "SAMPLES", "SOUND", "released"]
SOUND = script()
QUICK = Strategy(
    prediction="answers/0/entry", requests=(20, 20, 20), step_s=120, false_alarms=0.01, patience=40
)
SETTINGS = {
    "$schema": "https://azuremlschemas.azureedge.net/latest/managedOnlineDeployment.schema.json",
    "name": "blue",
    "environment": "azureml:ml-cpu:1",
    "instance_type": "Standard_DS3_v2",
    "instance_count": 1,
    "request_settings": {"request_timeout_ms": 1000},
    "tags": {"owner": "ana"},
}
COLLECTIONS = {name: {"enabled": "true"} for name in ("request", "response")}


def released(
    backend: Backend, endpoint: str, folder: Path, source: str = SOUND, collect: bool = False
) -> ModelDeployment:
    """A registered version of the endpoint's model, and the scoring script that serves it.

    Each call makes another version. With `collect` its requests are recorded.
    """
    number = str(len(backend.registry.versions(endpoint)) + 1)
    code, made = folder / f"code{number}", folder / f"model{number}"
    for path in (code, made):
        path.mkdir(parents=True)
    (code / "score.py").write_text(source)
    bring(code, "ml/serving/scoring")
    (made / "model.txt").write_text(f"tree\nversion={number}\n")
    write_manifest(made)
    digest = folder_digest(made)
    model_folder(digest).parent.mkdir(parents=True, exist_ok=True)
    made.rename(model_folder(digest))
    version = backend.registry.register(endpoint, "p", digest, "run")
    if isinstance(backend, AzureBackend):
        provision(backend.workspace.client, endpoint)
    snapshot = snapshots.copy(code)
    settings = {**SETTINGS, "endpoint_name": endpoint, "model": f"azureml:{endpoint}@latest"}
    if collect:
        settings["data_collector"] = {"collections": COLLECTIONS}
    deployment = ModelDeployment(
        endpoint=endpoint,
        model=endpoint,
        version=version.version,
        digest=digest,
        code=snapshot,
        scoring_script="score.py",
        model_folder=version.folder,
        environment_variables={},
        collect=float(collect),
        settings=settings,
    )
    return replace(deployment, deployment_digest=deployment.digest_with(snapshot.name))
