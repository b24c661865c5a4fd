"""The request of a job: its spec, and a name derived from the commit and the spec."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ml.backends import snapshot
from ml.backends.azure.jobs import BRANCH, CODE, COMMIT, DIRTY, REPOSITORY, SPEC, task_of
from ml.backends.azure.workspace import Workspace
from ml.core import git, repository
from ml.specs.assets import assets
from ml.specs.plan.plans import Plan, supplied_inputs
from ml.specs.sdk import load

# azure-ai-ml's job schema allows "letters, digits, - and _, at most 255"; these are shorter.
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_WORDS, _DIGITS = 40, 12


@dataclass(frozen=True)
class Submission:
    """A job to submit."""

    name: str
    job: Any  # azure-ai-ml's entity
    code: Mapping[Path, str]  # code folder → digest of its uploaded files

    def named(self, name: str) -> Submission:
        """Rename the job and return its submission."""
        self.job.name = name
        return Submission(name, self.job, self.code)


def prepare(plan: Plan) -> Submission:
    """Return the submission of a plan that was made from a spec; nothing is sent.

    The name consists of the display name and a digest of the commit, the uploaded code, the spec
    with its `--set`, and local data. The code is a snapshot: azure-ai-ml would match every file of
    the repository, even those of .venv, against .amlignore, and would upload later edits.
    """
    spec = plan.spec
    # Load a new entity, since azure-ai-ml changes the one that it submits.
    with load.quiet():
        job = load.from_document(spec.document, spec.file, {}).entity
    code = freeze(job)
    if job.type == "automl":  # azure-ai-ml resolves its data from the working directory
        for key, data in plan.inputs.items():  # the plan's path: the entity drops `azureml:`
            if path := assets.local_path(data.source or "", plan.spec.folder):
                getattr(job, key).path = str(path.resolve())
    digests = [*code.values()]
    name = str(job.name or "") or _name(plan, _digest(plan, spec.document.copy(), digests))
    job.name, job.display_name, job.experiment_name = name, plan.display_name, plan.experiment
    job.tags = dict(plan.tags)
    digest = digests[0] if len(digests) == 1 else hashed(digests) if digests else ""
    properties = {**_source(spec.file.parent), SPEC: str(plan.place), CODE: digest}
    job.properties = {**(job.properties or {}), **properties}
    return Submission(name, job, code)


def _source(folder: Path) -> dict[str, str]:
    """Return git properties of the spec's repository; a URL with credentials is left out.

    azure-ai-ml would use those of the working directory: see `no_repository`.
    """
    status = git.ask(folder, "status", "--porcelain", "--untracked-files=normal")
    address = git.ask(folder, "remote", "get-url", "origin") or ""
    source = {
        REPOSITORY: "" if re.match(r"https?://[^/]*@", address) else address,
        BRANCH: git.ask(folder, "symbolic-ref", "--short", "HEAD") or "",
        COMMIT: git.ask(folder, "rev-parse", "HEAD") or "",
        DIRTY: str(status != ""),
    }
    return {name: value for name, value in source.items() if value}


@contextmanager
def no_repository() -> Iterator[None]:
    """Hide git repositories from azure-ai-ml, which reads the commit of the working directory.

    A repository's settings may run programs, and the job already has its commit (`prepare`).
    """
    before = os.environ.get("GIT_DIR")
    os.environ["GIT_DIR"] = os.devnull
    try:
        yield
    finally:
        del os.environ["GIT_DIR"]
        if before is not None:
            os.environ["GIT_DIR"] = before


def freeze(job: Any) -> dict[Path, str]:
    """Replace each code folder of a job by its snapshot; return folder → snapshot's digest."""
    code: dict[Path, str] = {}
    for task in _tasks(job):
        folder = _code(task, job.base_path)
        taken = snapshot.take(folder)
        if folder is not None and taken is not None:
            code[folder] = taken.digest
            task.code = str(taken.folder)
    return code


def _tasks(job: Any) -> Iterator[Any]:
    """Yield each object of a job with code: the job, a sweep's trial, or a step's component."""
    if job.type == "automl":
        return
    if job.type != "pipeline":
        yield job.trial if job.type == "sweep" else job
        return
    for step in job.jobs.values():
        component = task_of(step)
        if component is not None and not isinstance(component, str):
            yield from _tasks(component)  # a registered one has its code


def _code(task: Any, base: str) -> Path | None:
    """Return the local folder of a task's code; None without code or if it is not local.

    A relative path starts at the task's base path; a sweep's trial has none and uses `base`.
    """
    folder = Path(getattr(task, "base_path", None) or base)
    path = assets.local_path(str(task.code), folder) if task.code else None
    return path.resolve() if path is not None and path.exists() else None


def _name(plan: Plan, digest: str) -> str:
    words = _NOT_IN_NAMES.sub("-", plan.display_name.lower()).strip("-")
    return f"{words[:_WORDS].strip('-') or 'job'}-{digest[:_DIGITS]}"


def content(plan: Plan, submission: Submission) -> str:
    """Return the digest of the request with its components, of the code and of local data.

    It does not depend on the commit, the machine or the display name.
    """
    request = load.request(plan.spec)
    # azure-ai-ml generates a display name if the job has none.
    request["properties"].pop("displayName", None)
    text = json.dumps(request, sort_keys=True)
    local = _local_data(plan)
    paths = [*submission.code, *(path for path, _ in local.values())]
    for path in sorted({str(path) for path in paths}, key=len, reverse=True):
        text = text.replace(json.dumps(path)[1:-1], "")
    data = {field: digest for field, (_, digest) in local.items()}
    return hashed([text, [*submission.code.values()], data])


def _local_data(plan: Plan) -> dict[str, tuple[Path, str]]:
    """Return field → (path, digest) of the plan's local data; assets are left out."""
    return {
        field: (data.path, assets.digest(data.path))
        for field, data in supplied_inputs(plan)
        if data.path is not None and data.asset is None and data.path.exists()
    }


def _digest(plan: Plan, document: Any, code: list[str]) -> str:
    """Return the digest for a job's name, in hexadecimal.

    Local data is hashed by content, not by path, so another machine finds the same job.
    """
    data = {field: digest for field, (_, digest) in _local_data(plan).items()}
    for field in data:
        *parents, name = field.split(".")
        owner = document
        for key in parents:  # the document lacks data of a component
            owner = owner.get(key) or {}
        if isinstance(owner.get(name), dict):
            owner[name].pop("path", None)
        elif name in owner:
            owner[name] = ""
    return hashed(
        [git.ask(plan.spec.file.parent, "rev-parse", "HEAD"), document, code, data]
    ).partition(":")[2]


def hashed(value: Any) -> str:
    """Return `sha256:HEX` of a value as JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return f"sha256:{sha256(text.encode()).hexdigest()}"


def upload(folder: Path, digest: str) -> str:
    """Return the dry run's line about code to upload."""
    return f"upload {repository.shown(folder)} ({digest[:19]}…), unless the workspace has it"


def requests(workspace: Workspace, submission: Submission) -> list[str]:
    """Return the dry run's lines: uploads as sentences, then the job's URL and full body.

    The body contains the components and environments that the spec defines. azure-ai-ml registers
    them first and sends their names instead.
    """
    return [
        *(upload(folder, digest) for folder, digest in submission.code.items()),
        f"PUT https://management.azure.com{workspace.id}/jobs/{submission.name}",
        json.dumps(load.request_of(submission.job), indent=2),
    ]
