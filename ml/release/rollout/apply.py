"""Apply: bring an environment to what is declared; blue serves until green has proved itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ml.backends.base import Backend, Watch, unwatched
from ml.backends.registry import Registry, Version
from ml.core.errors import Exit, Place, Problem, Refused
from ml.release.canary.canary import Outcome
from ml.release.declaration import desired_state, projects
from ml.release.declaration.desired_state import Declared
from ml.release.declaration.projects import Project
from ml.release.declaration.release_file import attached, evidence_problem, other_project
from ml.release.log import history
from ml.release.log.history import History, Release
from ml.release.promotion.gate_check import Judged, judge
from ml.release.promotion.propose import launch_of
from ml.release.rollout.cleanup import tidy
from ml.release.rollout.rollout import roll_out, settle
from ml.serving import endpoint
from ml.serving.endpoint import Live
from ml.serving.router.process import Router
from policies.promotion.decision import Decision, Step


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


@dataclass(frozen=True)
class Course:
    """What lies between an environment as it is now and what is declared for it."""

    release: Release
    judged: Judged
    registry: Registry
    history: History
    live: Live | None

    @property
    def is_champion(self) -> bool:
        """Whether the declared version is the environment's champion already."""
        return self.judged.decision.outcome == "already-champion"

    @property
    def serves(self) -> bool:
        """Whether it serves: as it should, or since an apply was killed after its switch."""
        live, launch = self.live, self.release.launch
        if live is None or live.launch.digest != launch.digest:
            return False
        return self.is_champion or live.launch.code == launch.code


def apply(
    backend: Backend,
    project: str,
    environment: str = desired_state.LOCAL,
    approved_by: str = "",
    *,
    port: int | None = None,
    watch: Watch = unwatched,
    told: Callable[[str], None] = lambda _: None,
    waiting: Callable[[], None] = lambda: None,
) -> Applied | None:
    """Bring the environment, on this machine, to what is declared; None when nothing is.

    `approved_by` names who stands for it. A second apply waits for the first, and calls `waiting`
    before; what is proposed while green is on trial begins it anew. `told` gets a sentence a step.
    Raises Refused when the model or its evidence are not what was declared, when green fails (blue
    is then live as before), and when it was rolled back before.
    """
    desired_state.check_environment(environment)
    found = projects.find(project)
    with desired_state.applying(found.name, environment, waiting):
        while True:
            with desired_state.locked(found.name):
                course = chart(backend, found, environment, approved_by, watch=watch)
            if course is None:
                return None
            done = _followed(course, port, told)
            if done is not None:
                return done
            told("something else was declared meanwhile: beginning anew")


def chart(
    backend: Backend,
    project: Project,
    environment: str,
    approved_by: str = "",
    *,
    step: Step = "apply",
    noted: bool = True,
    watch: Watch = unwatched,
) -> Course | None:
    """Compare what is declared with what is, and ask the gates; None when nothing is declared.

    Nothing is touched; the decision is in the audit log unless it is not to be `noted`. Raises
    Refused as `apply` does, and what `judge` raises.
    """
    declared = desired_state.read(project.name, environment)
    if declared is None:
        return None
    registry, deployment = backend.registry, project.deployment()
    name = desired_state.endpoint_of(deployment.endpoint, environment)
    version = _declared_version(registry, project, environment, declared)
    launch = replace(launch_of(backend, version, deployment), endpoint=name)
    past = history.of(name)
    judged = judge(
        backend,
        project,
        version,
        environment,
        step=step,
        approved_by=approved_by,
        reason=declared.reason,
        served_before=past.served_before(launch),
        noted=noted,
        watch=watch,
    )
    release = Release(
        project=project.name,
        environment=environment,
        declared=declared,
        version=version,
        launch=launch,
        samples=project.samples(),
        strategy=desired_state.strategy(project.name, environment),
        approved_by=approved_by,
    )
    return Course(release, judged, registry, past, endpoint.live(name))


def _followed(course: Course, port: int | None, told: Callable[[str], None]) -> Applied | None:
    """Bring it about; None when something else was declared before it was live."""
    release, name = course.release, course.release.launch.endpoint
    if not course.is_champion and course.judged.decision.outcome != "approved":
        return _result("refused", course)
    if course.serves:
        _, started = endpoint.ensure(name, port)
        settle(release, course.registry)
        return _result("unchanged", course, endpoint.router(name), started)
    if (refused := course.history.refusal(release)) is not None:
        tidy(name)  # killed between its verdict and its end, a rollout leaves servers
        raise refused
    endpoint.check_model(release.launch)
    rolled = roll_out(release, course.registry, course.history, port, told)
    return None if rolled is None else _result("applied", course, rolled[0], True, rolled[1])


def _result(
    outcome: Literal["applied", "unchanged", "refused"],
    course: Course,
    router: Router | None = None,
    started: bool = False,
    canary: Outcome | None = None,
) -> Applied:
    release, champion = course.release, course.judged.champion
    return Applied(
        outcome=outcome,
        project=release.project,
        environment=release.environment,
        endpoint=release.launch.endpoint,
        model=release.version.model,
        version=release.version.version,
        digest=release.version.digest,
        decision=course.judged.decision,
        replaced=champion.version if champion else None,
        router=router,
        started=started,
        canary=canary,
    )


def _declared_version(
    registry: Registry, project: Project, environment: str, declared: Declared
) -> Version:
    """The registered version that is declared; refused when it is not the one that was judged."""

    def place(field: str) -> Place:
        return desired_state.place(project.name, environment, field)

    model = project.model() or declared.model
    if declared.model != model:
        raise Refused(other_project(declared.model, model, place("model")))
    try:
        version = registry.find(declared.model, declared.version)
    except Refused as refused:
        raise Refused(
            *(replace(one, place=one.place or place("version")) for one in refused.problems),
            exit_code=refused.exit_code,
        ) from None
    if version.project != project.name:
        raise Refused(other_project(f"{version.model} of {version.project}", model, place("model")))
    if replace(version, evidence=declared.evidence).evidence_folder.is_dir():
        # Measured again since for another environment: this one rests on what it declares.
        version = replace(version, evidence=declared.evidence)
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
                    place(what),
                ),
                exit_code=Exit.GATE_SAID_NO,
            )
    if environment != desired_state.LOCAL:
        file = attached(desired_state.path(project.name, environment), environment)
        if problem := evidence_problem(file, declared.evidence, place("evidence")):
            raise Refused(problem, exit_code=Exit.GATE_SAID_NO)
    return version
