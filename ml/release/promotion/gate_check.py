"""Running the gates on a registered version: evidence, champion, decision, audit line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ml.backends.base import Backend
from ml.backends.registry import Version
from ml.backends.runs import Watch, unwatched
from ml.core.errors import Refused
from ml.release import audit
from ml.release.declaration import desired_state, projects
from ml.release.declaration.projects import Project
from ml.release.evidence import evidence, supply_chain
from ml.release.promotion import candidate
from policies.promotion.decision import Decision, Request, Step
from policies.promotion.engine import decide
from policies.promotion.evidence import Evidence
from policies.promotion.gate_settings import Gates, load


@dataclass(frozen=True)
class GateCheck:
    """A decision, the versions compared, and the hash of its audit line ("" without one)."""

    decision: Decision
    candidate: Version
    champion: Version | None
    evidence: Evidence
    audited: str


def check_registered(backend: Backend, model: str, version: str, environment: str) -> GateCheck:
    """Run the gates on a registered version as if it were proposed now.

    A version that is declared in the environment is checked with its declared reason.
    """
    registered = backend.registry.find(model, version)
    project = projects.find(registered.project)
    reason = desired_state.reason_for(project.name, environment, registered.digest)
    return check_gates(backend, project, registered, environment, reason=reason)


def check_gates(
    backend: Backend,
    project: Project,
    version: Version,
    environment: str,
    *,
    step: Step = "propose",
    approved_by: str = "",
    reason: str = "",
    served_before: bool = False,
    serving_changes: bool = False,
    record: bool = True,
    rival: Version | None = None,
    watch: Watch = unwatched,
) -> GateCheck:
    """Decide about a version; with `record` the decision is appended to the audit log.

    The version is compared with the champion, or with `rival` in its place. That one is scored
    again on the candidate's data when it was measured on other data. Advisories are looked up
    again, because new ones may exist. A candidate that served there before skips both: it is a way
    back. Raises Refused for a gates.yml that is wrong or looser than the floor.
    """
    gates = load_gates(project)
    own = evidence.load(version)
    champion = rival or backend.registry.champion(version.model, environment)
    if served_before:
        against = evidence.load(champion) if champion else None
    else:
        own = replace(own, supply_chain=supply_chain.today(own.supply_chain))
        against = champion_evidence(backend, project, own, champion, version, watch)
    decision = decide_on(
        gates,
        version,
        own,
        against,
        environment,
        step=step,
        approved_by=approved_by,
        reason=reason,
        served_before=served_before,
        serving_changes=serving_changes,
    )
    line = {"project": project.name, "decision": decision.to_json()}
    audited = audit.append("decision", line) if record else ""
    return GateCheck(decision, version, champion, own, audited)


def decide_on(
    gates: Gates,
    version: Version,
    own: Evidence,
    against: Evidence | None,
    environment: str,
    *,
    step: Step = "propose",
    approved_by: str = "",
    reason: str = "",
    served_before: bool = False,
    serving_changes: bool = False,
) -> Decision:
    """The decision of the gates now, on a version's evidence against the champion's."""
    request = Request(
        environment=environment,
        model=version.model,
        version=version.version,
        digest=version.digest,
        step=step,
        now=datetime.now(UTC),
        approved_by=approved_by,
        reason=reason,
        served_before=served_before,
        serving_changes=serving_changes,
    )
    return decide(gates, own, against, request)


def load_gates(project: Project) -> Gates:
    """The floor with the project's tighter values; Refused when a file is wrong or looser."""
    return load(project.gates)


def champion_evidence(
    backend: Backend,
    project: Project,
    own: Evidence,
    champion: Version | None,
    version: Version,
    watch: Watch,
) -> Evidence | None:
    """The champion's evidence on the candidate's data; empty when it cannot be measured."""
    if champion is None:
        return None
    theirs = evidence.load(champion)
    if champion.digest == version.digest:
        return theirs
    if theirs.data == own.data and _units(theirs) == _units(own):
        return theirs
    try:
        evaluated = candidate.evaluate(backend, project, champion.folder, watch)
        return evidence.rescored(backend, theirs, evaluated)
    except (Refused, OSError) as error:
        # The comparing gate fails with this reason.
        return Evidence(version=champion.version, disagreements=(str(error),))


def _units(of: Evidence) -> dict[str, set[str]]:
    return {split: set(units) for split, units in of.outcomes.items()}
