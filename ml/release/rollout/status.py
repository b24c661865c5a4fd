"""Report the status of projects: declared version, champion, serving version, last attempts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ml.backends.base import Backend
from ml.backends.endpoints import CHANGED, Live
from ml.backends.traffic import CLIENT
from ml.core.errors import UserError
from ml.release import audit
from ml.release.audit import Attempt, History, Line
from ml.release.declaration import desired_state, projects
from ml.release.declaration.release_file import ReleaseEntry
from ml.release.rollout.plan import nothing_declared
from ml.release.watch.requests import read_collected

_RECENT_S = 86_400.0


@dataclass(frozen=True)
class Status:
    """One project in one environment; None and "" where there is nothing."""

    project: str
    environment: str
    endpoint: str
    model: str
    declared: str | None  # the version
    digest: str  # of the declared model
    champion: str | None  # its version
    serving: str | None  # the version; None while its server is stopped
    url: str | None
    beside: str  # a sentence on the canary or the experiment that shares the traffic
    signed_off: str  # the person who approved the live version
    last_attempt: Attempt | None
    refused: Sequence[Attempt]  # rolled back or withdrawn: applied again only if proposed again
    audit: str  # whether the audit log has the decision
    verdict: str  # a sentence, with the next command if something is to be done
    as_declared: bool = True  # whether the declared version, if any, is champion and serves
    failing: str = ""  # a sentence if the serving version fails too many requests


def status(
    backend: Backend, project: str | None = None, environment: str | None = None
) -> Sequence[Status]:
    """Return the status of a project in an environment; None means all (releasable) ones.

    Raises UserError when a line of the audit log was changed or a declaration cannot be read.
    """
    # A declaration in the local home outlives its project.
    releasable = {target.name for target in projects.every(backend.root)}
    names = [name for name in desired_state.projects(backend) if name in releasable]
    if project:
        names = [projects.find(backend.root, project).name]
    environments = (
        [desired_state.check_environment(environment)]
        if environment
        else desired_state.ENVIRONMENTS
    )
    log = audit.verify(backend.audit_log)
    places = [(name, place) for name in names for place in environments]
    entries = [desired_state.read(backend, *place) for place in places]
    return [
        _environment_status(*place, entry, backend, log)
        for place, entry in zip(places, entries, strict=True)
    ]


def _environment_status(
    project: str,
    environment: str,
    entry: ReleaseEntry | None,
    backend: Backend,
    log: Sequence[Line],
) -> Status:
    model = entry.model if entry else _model(backend, project)
    name = backend.endpoints.name_of(model, environment)
    history = History(name, log)
    live, url, changed = None, None, ""
    try:
        live, url = backend.endpoints.live(name), backend.endpoints.url(name)
    except UserError as refused:
        if refused.problems[0].code != CHANGED:
            raise
        changed = f"{refused.problems[0].actual}; {refused.problems[0].hint}"
    champion = backend.registry.champion(model, environment) if entry else None
    serving = live.deployment.version if live and url else None
    is_applied, audited, failing = True, "", ""
    if entry is None:
        verdict = nothing_declared(serving)
    else:
        is_logged = entry.decision in [line["hash"] for line in log]
        audited = "verified" if is_logged else "the decision is not in the audit log"
        applied = champion is not None and champion.digest == entry.digest
        is_live = live is not None and live.deployment.digest == entry.digest
        if live is not None and entry.deployment_digest:
            is_live &= live.deployment.deployment_digest == entry.deployment_digest
        is_applied = applied and is_live
        failing = _failing(backend, name, live) if live and url else ""
        verdict = _refused(
            entry, history.refusal(entry), live.deployment.version if live else None, project
        ) or _verdict(backend.name, project, environment, name, is_applied, bool(url))
        if failing:
            next_step = f"next: ml release rollback {project} --env {environment}"
            verdict = f"of version {serving}, {failing}; {next_step}"
    return Status(
        project=project,
        environment=environment,
        endpoint=name,
        model=model,
        declared=entry.version if entry else None,
        digest=entry.digest if entry else "",
        champion=champion.version if champion else None,
        serving=serving,
        url=url,
        beside=_canary_share(live) if url else "",
        signed_off=history.approver(live.deployment.digest) if live else "",
        last_attempt=history.last_attempt(project, environment),
        refused=history.refused(),
        audit=audited,
        verdict=changed or verdict,
        as_declared=not changed and (entry is None or (is_applied and bool(url))),
        failing=failing,
    )


def _failing(backend: Backend, name: str, live: Live) -> str:
    """Return a sentence about failed requests to the serving version in the last day; "" if none.

    Without collected requests the router's counters since the release are used.
    """
    since = time.time() - _RECENT_S
    with suppress(UserError):
        seen = read_collected(
            backend.endpoints.collected(name, since), live.deployment.digest, since
        )
        router = backend.endpoints.router(name)
        # `renew` would extend the lease of a canary.
        if not seen.requests and router is not None and live.canary is None:
            counted = router.renew()["tallies"].get(live.server.slot.name, {}).get(CLIENT, {})
            requests, failed = counted.get("requests", 0), counted.get("errors", 0)
            seen = replace(seen, requests=requests, crashed=failed)
        return seen.failing
    return ""


def _canary_share(live: Live | None) -> str:
    if live is None or (canary := live.canary) is None:
        return ""
    version = f"version {canary.deployment.version} has {canary.weight} % of the requests"
    if canary.experiment:
        return f"{version}, for the experiment {canary.experiment}"
    return f"{version}: an apply is running or was killed; the next one removes it"


def _model(backend: Backend, project: str) -> str:
    """Return the model of the project's endpoint; the project's name if it has no endpoint."""
    try:
        return projects.find(backend.root, project).model() or project
    except UserError:
        return project


def _refused(entry: ReleaseEntry, line: Line | None, live: str | None, project: str) -> str | None:
    """Return the verdict on a version that was rolled back or withdrawn; None for any other."""
    if line is None:
        return None
    serves = f"version {live} serves" if live else "nothing serves"
    again = f"next: ml release propose {project}"
    what = f"version {entry.version} was {audit.happened(line)} ({line['why']})"
    return f"{what}; {serves}; {again}"


def _verdict(on: str, project: str, environment: str, name: str, applied: bool, up: bool) -> str:
    if not applied:
        env = "" if environment == desired_state.LOCAL else f" --env {environment} --on {on}"
        return f"declared, not applied; next: ml release apply {project}{env} --approved-by NAME"
    return "as declared" if up else f"as declared, but stopped; next: ml serve {name}"
