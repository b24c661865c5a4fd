"""Apply: bring an environment to what is declared; blue serves until green has proved itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ml.backends.base import Watch, unwatched
from ml.release import desired
from ml.release import project as projects
from ml.release.desired import Declared
from ml.release.judge import Judged, judge
from ml.release.project import Project
from ml.release.propose import launch_of
from ml.release.registry import Registry, Version
from ml.release.rollout import roll_out, settle
from ml.serving import endpoint
from ml.serving.router.process import Router
from ml.specs.problems import Exit, Problem, Refused
from policies.promotion.decision import Decision


@dataclass(frozen=True)
class Applied:
    """What an apply came to.

    `applied`: the declared version is live now. `unchanged`: it was live before; `started` says
    whether its server had to be. `refused`: a gate said no and nothing was touched.
    """

    outcome: Literal["applied", "unchanged", "refused"]
    project: str
    environment: str
    endpoint: str
    model: str
    version: str
    digest: str
    decision: Decision
    replaced: str | None
    router: Router | None
    started: bool


def apply(
    project: str,
    environment: str = "local",
    approved_by: str = "",
    *,
    port: int | None = None,
    watch: Watch = unwatched,
) -> Applied:
    """Bring the environment to what is declared; `approved_by` names who stands for it.

    A second apply waits for the first. Raises Refused when nothing is declared, when the model or
    its evidence are not what was declared, and when green fails: blue is then live as before.
    """
    desired.check_environment(environment)
    found = projects.find(project)
    with desired.locked(found.name):
        declared = desired.read(found.name, environment)
        if declared is None:
            raise _nothing_declared(found, environment)
        registry = Registry()
        version = _declared_version(registry, declared)
        judged = judge(
            registry,
            found,
            version,
            environment,
            step="apply",
            approved_by=approved_by,
            reason=declared.reason,
            watch=watch,
        )
        return _converge(found, environment, judged, registry, approved_by, port)


def _converge(
    project: Project,
    environment: str,
    judged: Judged,
    registry: Registry,
    approved_by: str,
    port: int | None,
) -> Applied:
    version, decision = judged.candidate, judged.decision
    deployment = project.deployment()

    def result(
        outcome: Literal["applied", "unchanged", "refused"],
        live: Router | None = None,
        started: bool = False,
    ) -> Applied:
        return Applied(
            outcome=outcome,
            project=project.name,
            environment=environment,
            endpoint=deployment.endpoint,
            model=version.model,
            version=version.version,
            digest=version.digest,
            decision=decision,
            replaced=judged.champion.version if judged.champion else None,
            router=live,
            started=started,
        )

    current = endpoint.live(deployment.endpoint)
    if decision.outcome == "already-champion":
        if current is not None and current.launch.digest == version.digest:
            now, started = endpoint.ensure(deployment.endpoint, port)
            settle(environment, now.launch, approved_by)
            return result("unchanged", endpoint.router(deployment.endpoint), started)
        # Champion by its alias, but not what serves: a crash in between, or a removed state file.
    elif decision.outcome != "approved":
        return result("refused")
    launch = launch_of(version, deployment)
    endpoint.check_model(launch)
    with endpoint.locked(deployment.endpoint):
        green = roll_out(
            registry, environment, launch, version, project.samples(), approved_by, port
        )
    return result("applied", green, True)


def _declared_version(registry: Registry, declared: Declared) -> Version:
    """The registered version that is declared; refused when it is not the one that was judged."""
    version = registry.find(declared.model, declared.version)
    for what, found, expected in (
        ("digest", version.digest, declared.digest),
        ("evidence", version.evidence, declared.evidence),
    ):
        if found != expected:
            raise Refused(
                Problem(
                    "not-as-declared",
                    f"{version.model} {version.version} has the {what} {found or 'nothing'}",
                    f"{expected}, as the release declares",
                    "propose it again",
                ),
                exit_code=Exit.GATE_SAID_NO,
            )
    return version


def _nothing_declared(project: Project, environment: str) -> Refused:
    return Refused(
        Problem(
            "nothing-declared",
            f"nothing is declared for `{project.name}` in `{environment}`",
            "a proposal that passed the gates",
            f"ml release propose {project.name}",
        )
    )
