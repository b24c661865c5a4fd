"""The stand-in beside Microsoft's published examples of the REST API, where a copy is at hand.

Shapes are compared, not values; what the examples cannot say is in the README beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.workspace import configured
from tests.backends.test_azure import planned
from tests.conftest import ROOT
from tests.stand_ins.azure import bodies
from tests.stand_ins.azure.running import StandIn

EXAMPLES = ROOT / "../shared/data/azure_rest"
# The folder that a published request is in → the collection of the stand-in.
REQUESTS = {
    **dict.fromkeys(("CommandJob", "SweepJob", "PipelineJob", "AutoMLJob"), "jobs"),
    "DataVersionBase": "data",
    "EnvironmentVersion": "environments",
    "CodeVersion": "codes",
    "ModelVersion": "models",
    "ComponentVersion": "components",
    "OnlineEndpoint": "onlineEndpoints",
    "ManagedOnlineDeployment": "deployments",
    "Schedule": "schedules",
}
# "Keys in examples that the SDK's 2025-12-01 models don't have", of older versions of the API.
OLDER = ("autologgerSettings", "parentJobName", "locations", "priority", "assetVersion")
# Fields of the service's models that these examples leave out; azure-ai-ml reads most of them.
OPTIONAL = frozenset(
    {"isArchived", "provisioningState", "disableLocalAuth", "systemData", "kind"}
    | {"mlFlowTrackingUri", "workspaceId"}
)


def _requests() -> Iterator[tuple[str, str, Any]]:
    for path in sorted(EXAMPLES.rglob("createOrUpdate.json")):
        body = json.loads(path.read_text())["parameters"].get("body")
        if path.parent.name in REQUESTS and body:
            yield str(path.relative_to(EXAMPLES)), REQUESTS[path.parent.name], body


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the published examples are not here")
def test_published_requests_are_valid() -> None:
    """The check of bodies finds nothing in them but fields of older versions."""
    problems = {
        (name, problem)
        for name, collection, body in _requests()
        for problem in bodies.problems(collection, body)
        if not any(f".{key}: unknown" in problem for key in OLDER)
    }
    assert problems == set()
    assert len(list(_requests())) > 15


@pytest.mark.slow
@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the published examples are not here")
def test_answers_have_the_published_shape(workspace: StandIn, spec: Path) -> None:
    """Every key of an answer is in the published one, and is of the same JSON type."""
    here = configured()
    run = AzureBackend().run(planned(spec))
    answers = {
        "2024-01-01-preview/examples/Job/CommandJob/get": f"/jobs/{run.name}",
        "2023-04-01-preview/examples/Workspace/EnvironmentVersion/get": (
            "/environments/ml-cpu/versions/1"
        ),
        "2024-10-01-preview/examples/Datastore/get": "/datastores/workspaceblobstore",
        "2023-08-01-preview/examples/Compute/get/AmlCompute": "/computes/cpu-cluster",
        "2024-10-01-preview/examples/Workspace/get": "",
    }
    others = {}
    for name, path in answers.items():
        example = json.loads((EXAMPLES / f"{name}.json").read_text())
        published = example["responses"]["200"]["body"]
        _, answer = here.answer("data_plane", "GET", here.id + path)
        others[name] = sorted(_unpublished(answer, published, ""))
    assert not any(others.values()), others


def _unpublished(answer: Any, published: Any, at: str) -> Iterator[str]:
    """The paths of an answer that the example does not have, or has with another type."""
    if published is None or answer is None:
        return
    if type(answer) is not type(published):
        yield f"{at}: {type(answer).__name__}, published {type(published).__name__}"
    elif isinstance(answer, dict):
        names = {key for key in published if key != "string"}
        for key, value in answer.items():
            if key in published:
                yield from _unpublished(value, published[key], f"{at}.{key}")
            elif "string" in published:
                continue  # any name
            elif names and key not in OPTIONAL:
                yield f"{at}.{key}"
