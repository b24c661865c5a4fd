"""Apply: bring an environment to what is declared; blue serves until green has proved itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ml.backends.base import Watch, unwatched
from ml.release import desired
from ml.release import project as projects
from ml.release.canary import Outcome
from ml.release.desired import Declared
from ml.release.journal import Release, refused_before
from ml.release.judge import judge
from ml.release.project import Project
from ml.release.propose import launch_of
from ml.release.registry import Registry, Version
from ml.release.rollout import roll_out, settle
from ml.release.strategy import Strategy
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
    canary: Outcome | None


def apply(
    project: str,
    environment: str = "local",
    approved_by: str = "",
    *,
    port: int | None = None,
    watch: Watch = unwatched,
    told: Callable[[str], None] = lambda _: None,
) -> Applied:
    """Bring the environment to what is declared; `approved_by` names who stands for it.

    A second apply waits for the first; what is proposed while green is on trial begins it anew.
    `told` gets a sentence a step. Raises Refused when nothing is declared, when the model or its
    evidence are not what was declared, when green fails (blue is then live as before), and when it
    was rolled back before.
    """
    if desired.check_environment(environment) != desired.LOCAL:
        raise _no_backend(environment)
    found = projects.find(project)
    strategy = desired.strategy(found.name, environment)
    with desired.applying(found.name):
        while True:
            done = _attempt(found, environment, strategy, approved_by, port, watch, told)
            if done is not None:
                return done
            told("something else was declared meanwhile: beginning anew")


def _attempt(
    project: Project,
    environment: str,
    strategy: Strategy,
    approved_by: str,
    port: int | None,
    watch: Watch,
    told: Callable[[str], None],
) -> Applied | None:
    """Bring about what is declared now; None when it changed before it was live."""
    with desired.locked(project.name):
        declared = desired.read(project.name, environment)
        if declared is None:
            raise _nothing_declared(project, environment)
        registry = Registry()
        judged = judge(
            registry,
            project,
            _declared_version(registry, declared),
            environment,
            step="apply",
            approved_by=approved_by,
            reason=declared.reason,
            watch=watch,
        )
    version, deployment = judged.candidate, project.deployment()

    def result(
        outcome: Literal["applied", "unchanged", "refused"],
        router: Router | None = None,
        started: bool = False,
        canary: Outcome | None = None,
    ) -> Applied:
        return Applied(
            outcome=outcome,
            project=project.name,
            environment=environment,
            endpoint=deployment.endpoint,
            model=version.model,
            version=version.version,
            digest=version.digest,
            decision=judged.decision,
            replaced=judged.champion.version if judged.champion else None,
            router=router,
            started=started,
            canary=canary,
        )

    champion = judged.decision.outcome == "already-champion"
    if not champion and judged.decision.outcome != "approved":
        return result("refused")
    release = Release(
        project=project.name,
        environment=environment,
        declared=declared,
        version=version,
        launch=launch_of(version, deployment),
        samples=project.samples(),
        strategy=strategy,
        approved_by=approved_by,
    )
    current = endpoint.live(deployment.endpoint)
    # It serves: as it should, or since an apply was killed after its switch.
    serves = current is not None and current.launch.digest == version.digest
    if serves and (champion or (current and current.launch.code == release.launch.code)):
        _, started = endpoint.ensure(deployment.endpoint, port)
        settle(release, registry)
        return result("unchanged", endpoint.router(deployment.endpoint), started)
    if (refused := refused_before(release)) is not None:
        raise refused
    endpoint.check_model(release.launch)
    rolled = roll_out(release, registry, port, told)
    return None if rolled is None else result("applied", rolled[0], True, rolled[1])


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


def _no_backend(environment: str) -> Refused:
    return Refused(
        Problem(
            "no-backend",
            f"`{environment}` is on Azure ML",
            "`local`: the Azure backend is not built yet (the README's status table)",
        ),
        exit_code=Exit.CANNOT_HONOUR,
    )
