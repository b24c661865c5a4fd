"""Schedules, batch endpoints and batch deployments: created from their specs by azure-ai-ml."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml.backends import snapshot
from ml.backends.azure import submission
from ml.backends.azure.assets import CONTENT
from ml.backends.azure.errors import as_refusals, or_none, retried
from ml.backends.azure.jobs import Outputs
from ml.backends.azure.workspace import Workspace
from ml.backends.resources import Applied
from ml.backends.runs import Run, Watch, unwatched
from ml.core import faults, repository
from ml.core.errors import Problem, Refused
from ml.specs.assets import assets
from ml.specs.plan.batch import OUTPUT
from ml.specs.sdk import load
from ml.specs.sdk.load import Spec

# Seconds between two lines about an operation that goes on, and until one is begun again.
SAY_S, BUSY_POLL_S = 30.0, 15.0


@dataclass(frozen=True)
class _Declaration:
    """What a spec declares: azure-ai-ml's entity, with a tag of its content, and its ARM path."""

    entity: Any
    kind: str
    path: str
    code: tuple[str, ...]


@dataclass(frozen=True)
class AzureResources:
    """Implements `ml.backends.resources.Resources`; `follow` follows a job, by its name.

    `say` gets a line every half a minute while Azure has not ended an operation.
    """

    workspace: Workspace
    follow: Callable[[str, Watch], Run]
    say: Callable[[str], None] = lambda line: None

    def requests(self, spec: Spec) -> tuple[str, ...]:
        declared = self._declaration(spec)
        with load.quiet():
            content = json.dumps(load.fields_of(declared.entity), indent=2, default=str)
        url = f"https://management.azure.com{self.workspace.id}/{declared.path}"
        return (*declared.code, f"PUT {url}, from", content)

    def apply(self, spec: Spec) -> Applied:
        declared, client = self._declaration(spec), self.workspace.client
        entity, name = declared.entity, str(declared.entity.name)
        with as_refusals(), self.workspace.quiet():
            if declared.kind == "schedule":
                before = or_none(lambda: client.schedules.get(name))
                put = client.schedules.begin_create_or_update
                commands = (f"az ml schedule show --name {name}",)
                return Applied("schedule", name, self._put(entity, before, put), commands)
            if declared.kind == "batch endpoint":
                before = or_none(lambda: client.batch_endpoints.get(name))
                put = client.batch_endpoints.begin_create_or_update
                return Applied("batch endpoint", name, self._put(entity, before, put))
            return self._deploy(declared)

    def _deploy(self, declared: _Declaration) -> Applied:
        """A deployment; the first one of an endpoint becomes its default."""
        client, entity = self.workspace.client, declared.entity
        endpoint = or_none(lambda: client.batch_endpoints.get(entity.endpoint_name))
        if endpoint is None:
            raise Refused(_no_endpoint(entity.endpoint_name))
        listed = client.batch_deployments.list(entity.endpoint_name)
        deployments = {deployment.name: deployment for deployment in listed}
        put = client.batch_deployments.begin_create_or_update
        change = self._put(entity, deployments.get(entity.name), put)
        if not (endpoint.defaults or {}).get("deployment_name"):
            endpoint.defaults = {"deployment_name": entity.name}
            self._carry_out(endpoint, client.batch_endpoints.begin_create_or_update)
        command = f"ml invoke {entity.endpoint_name} --input DATA --on azure"
        return Applied(declared.kind, entity.name, change, (command,))

    def _put(self, entity: Any, before: Any, put: Callable[[Any], Any]) -> Any:
        """Create or update the entity; nothing is sent where the same content is there."""
        if before is not None and (before.tags or {}).get(CONTENT) == entity.tags[CONTENT]:
            return "unchanged"
        self._carry_out(entity, put)
        return "updated" if before is not None else "created"

    def _carry_out(self, entity: Any, put: Callable[[Any], Any]) -> None:
        """Send the entity; again where the resource has another operation now."""
        retried(lambda: ended(put(entity), entity.name, self.say), BUSY_POLL_S)

    def score(self, endpoint: str, deployment: str, data: str, watch: Watch = unwatched) -> Run:
        from azure.ai.ml import Input

        key, equals, rest = data.partition("=")
        name, data = (key, rest) if equals and key.isidentifier() else ("input", data)
        path = assets.local(data, Path.cwd())
        if path is not None and not path.exists():
            raise Refused.of("missing-file", f"no `{data}`", "a file or folder", "--input PATH")
        kind = "uri_file" if path is not None and path.is_file() else "uri_folder"
        source = Input(type=kind, path=str(path.resolve()) if path is not None else data)
        with as_refusals(), self.workspace.quiet():
            if or_none(lambda: self.workspace.client.batch_endpoints.get(endpoint)) is None:
                raise Refused(_no_endpoint(endpoint))
            job = self.workspace.client.batch_endpoints.invoke(
                endpoint, deployment_name=deployment or None, inputs={name: source}
            )
        run = self.follow(str(job.name), watch)
        if run.outputs or run.status != "Completed":
            return run
        # A model's deployment: "score" of the only step (how-to-use-batch-model-deployments).
        (step,) = run.steps
        types = {OUTPUT: "uri_folder"}
        return replace(run, outputs=Outputs(self.workspace, step.id, types, step.folder))

    def _declaration(self, spec: Spec) -> _Declaration:
        """The entity of a spec; its code is a snapshot, as a job's is."""
        with load.quiet():
            entity = load.from_document(spec.document, spec.file, {}).entity
            content = json.dumps(load.fields_of(entity), sort_keys=True, default=str)
        digests: dict[Path, str] = {}
        with as_refusals(), faults.as_refusals():
            if spec.kind.family == "schedule":
                kind, path = "schedule", f"schedules/{entity.name}"
                if not isinstance(entity.create_job, str):
                    digests = submission.freeze(entity.create_job)
            elif spec.kind.family == "batch_endpoint":
                kind, path = "batch endpoint", f"batchEndpoints/{entity.name}"
            else:
                kind = "batch deployment"
                path = f"batchEndpoints/{entity.endpoint_name}/deployments/{entity.name}"
                digests = _freeze(entity, spec.folder)
        content = content.replace(str(repository.root(spec.file)), "")
        digest = submission.hashed([content, sorted(digests.values())])
        entity.tags = {**(entity.tags or {}), CONTENT: digest.removeprefix("sha256:")}
        uploads = (submission.upload(folder, digest) for folder, digest in digests.items())
        return _Declaration(entity, kind, path, tuple(uploads))


def ended(poller: Any, name: str, say: Callable[[str], None], every_s: float = SAY_S) -> Any:
    """The result of an operation on the resource of that name, once it has ended."""
    began = time.monotonic()
    while True:
        poller.wait(every_s)
        if poller.done():
            return poller.result()
        say(f"{name}: waiting for Azure, {time.monotonic() - began:.0f} s so far")


def _freeze(deployment: Any, folder: Path) -> dict[Path, str]:
    """Replace the code of a deployment by its snapshot, and resolve the path of its model."""
    digests: dict[Path, str] = {}
    configuration = getattr(deployment, "code_configuration", None)
    if configuration is not None and configuration.code:
        code = assets.local(str(configuration.code), folder)
        if code is not None and (taken := snapshot.take(code.resolve())) is not None:
            digests[code.resolve()] = taken.digest
            configuration.code = str(taken.folder)
    model = getattr(getattr(deployment, "model", None), "path", None)
    if model and (path := assets.local(str(model), folder)) and path.exists():
        digests[path.resolve()] = assets.digest(path)
    return digests


def _no_endpoint(name: str) -> Problem:
    actual = f"no batch endpoint `{name}`"
    expected, hint = "an endpoint before its deployment", "ml run ENDPOINT.yml --on azure"
    return Problem("no-batch-endpoint", actual, expected, hint)
