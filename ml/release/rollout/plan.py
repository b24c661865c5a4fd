"""The steps that `ml release apply` would take; nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from ml.backends.base import Backend
from ml.core.errors import Exit, UserError
from ml.release import serving
from ml.release.declaration import desired_state, projects
from ml.release.declaration.release_file import ReleaseEntry
from ml.release.rollout.apply import RolloutPlan, plan_rollout
from policies.promotion.decision import Decision, listed


@dataclass(frozen=True)
class LiveVersion:
    """The live version."""

    version: str
    digest: str
    url: str | None  # None while its server is stopped


@dataclass(frozen=True)
class Plan:
    """The plan of an apply."""

    project: str
    environment: str
    endpoint: str
    entry: ReleaseEntry | None
    serving: LiveVersion | None
    verdict: str
    rollout: RolloutPlan | None = None  # None without a declared version that can be used
    steps: Sequence[str] = ()  # () if nothing is to do or apply would refuse
    stops: UserError | None = None  # the error of apply; a missing sign-off is in `unsigned`
    project_changes: Sequence[str] = ()  # how the project's files differ from the declared spec

    @property
    def decision(self) -> Decision | None:
        """The decision of the gates; None when they were not run."""
        return self.rollout.check.decision if self.rollout else None

    @property
    def unsigned(self) -> bool:
        """True if apply needs `--approved-by`."""
        pending = self.decision is not None and self.decision.outcome == "pending"
        return pending and bool(self.steps)

    def to_json(self) -> Mapping[str, object]:
        """Return the plan as JSON-compatible values."""
        champion = self.rollout.check.champion if self.rollout else None
        stops = self.stops.problems[0] if self.stops else None
        return {
            "project": self.project,
            "environment": self.environment,
            "endpoint": self.endpoint,
            "declared": asdict(self.entry) if self.entry else None,
            "serving": asdict(self.serving) if self.serving else None,
            "champion": champion.version if champion else None,
            "decision": self.decision.to_json() if self.decision else None,
            "to_do": bool(self.steps),
            "steps": list(self.steps),
            "unsigned": self.unsigned,
            "stops": stops
            and {**asdict(stops), "place": str(stops.place) if stops.place else None},
            "verdict": self.verdict,
            "project_changes": list(self.project_changes),
        }


def plan(
    backend: Backend,
    project: str,
    environment: str = desired_state.LOCAL,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Return the plan of an apply to the environment; nothing is changed or recorded.

    A champion that was measured on other data is scored again, as in apply. Raises UserError for a
    release.yml or gates.yml that cannot be read.
    """
    desired_state.check_environment(environment)
    target = projects.find(backend.root, project)
    entry = desired_state.read(backend, target.name, environment)
    name = backend.endpoints.name_of(target.endpoint(), environment)
    live = backend.endpoints.live(name)
    serving = None
    if live is not None:
        serving = LiveVersion(
            live.deployment.version, live.deployment.digest, backend.endpoints.url(name)
        )
    report = partial(Plan, target.name, environment, name, entry, serving)
    try:
        rollout = plan_rollout(
            backend, target, environment, step="propose", record=False, progress=progress
        )
    except UserError as refused:
        if entry is None or refused.problems[0].code not in _OF_THE_VERSION:
            raise
        return report("apply would refuse before changing anything", stops=refused)
    if rollout is None:
        return report(nothing_declared(serving.version if serving else None))
    version = rollout.version.version
    changes = project_changes(rollout)
    report = partial(report, project_changes=changes)
    if not rollout.is_champion and not rollout.check.decision.allowed:
        gates = ", ".join(result.gate for result in rollout.check.decision.blocking)
        return report(f"rejected: gates that failed for version {version}: {gates}", rollout)
    is_running = serving is not None and serving.url is not None
    if not (rollout.serves and is_running):  # a running server verified its files at its start
        try:
            backend.endpoints.check_deployment(rollout.deployment)
        except UserError as refused:
            return report("apply would refuse before changing anything", rollout, stops=refused)
    if rollout.serves:
        steps = tuple(_remaining(rollout, is_running))
        if steps:
            return report(f"version {version} is live; {len(steps)} steps remain", rollout, steps)
        if changes:
            return report(
                f"version {version} serves as declared; the project's files differ", rollout
            )
        return report(f"nothing to do: version {version} serves as declared", rollout)
    if (before := rollout.refusal) is not None:
        return report(
            "apply would refuse: this version was rolled back or withdrawn", rollout, stops=before
        )
    if (waits := _waits(rollout)) is not None:
        return report(
            "apply would refuse: the previous environment has not served it", rollout, stops=waits
        )
    steps = tuple(_steps(rollout, serving))
    return report(f"{len(steps)} steps to version {version}", rollout, steps)


def nothing_declared(serving: str | None) -> str:
    """Return the verdict on an environment without a declaration; `serving` is the live version."""
    if serving is None:
        return "no model yet: nothing is declared and nothing serves"
    return f"nothing is declared; version {serving} keeps serving"


# Errors that apply raises for a declared version before it runs the gates.
_OF_THE_VERSION = frozenset(
    {"digest-mismatch", "no-such-version", "model-of-another-project", "evidence-edited"}
    | {"decision-unknown"}
)


def _waits(rollout: RolloutPlan) -> UserError | None:
    """Return the error if the previous environment has not served the version yet; else None."""
    for result in rollout.check.decision.results:
        if result.gate == "order" and result.verdict == "pending":
            hint = "propose and apply it there first: ml release propose, ml release apply"
            stated = ("environment-order", result.actual, result.required, hint)
            return UserError.with_code(*stated, exit_code=Exit.GATE_SAID_NO)
    return None


def _remaining(rollout: RolloutPlan, is_running: bool) -> Iterator[str]:
    """Yield the remaining steps for a version that is live."""
    version = rollout.version.version
    if not is_running:
        yield f"start the server of version {version}"
    if not rollout.is_champion:
        yield f"finish the interrupted rollout: version {version} becomes champion"
    if rollout.live is not None and rollout.live.canary is not None:
        yield f"stop the leftover canary: {rollout.live.canary.deployment.version}"


def _steps(rollout: RolloutPlan, serving: LiveVersion | None) -> Iterator[str]:
    deployment, version = rollout.deployment, rollout.deployment.version
    acceptance, is_rollback = rollout.acceptance, rollout.is_rollback
    if differences := rollout.differences:
        yield f"serving changes: {listed(differences, '; ')}"
    yield f"verify the digest {deployment.digest[:19]}… of the model folder (it matches now)"
    yield f"start version {version}" + (f" beside version {serving.version}" if serving else "")
    yield f"smoke test: send it {len(acceptance.samples)} sample requests and check the digest"
    if limit := acceptance.latency_limit:
        yield f"latency: send it {limit[0]} requests; the p95 there is at most {limit[1]:g} ms"
    if serving is None:
        yield "no canary: no version serves to compare with"
    elif is_rollback:
        yield "no canary: this version served here before"
    else:
        if fields := acceptance.new_fields:
            yield f"its answers may have new fields: {', '.join(fields)} (release.yml)"
        yield from (f"a new field does not count: {reason}" for reason in acceptance.expired)
        for stage in acceptance.strategy.stages:
            yield (
                f"{stage} of the requests until {stage.requests} are answered, against version "
                f"{serving.version}; rolled back at once if it is worse"
            )
    yield f"give version {version} all the traffic; it becomes champion of {rollout.environment}"
    if serving is not None:
        yield f"stop version {serving.version} once its open requests are answered"
    yield f"record who approved the {'return' if is_rollback else 'release'}"


def project_changes(rollout: RolloutPlan) -> Sequence[str]:
    """Return how the project's serving code and settings differ from the declared ones.

    Invalid files do not stop the declared version: their problems are returned instead.
    """
    now = projects.find(rollout.backend.root, rollout.project)
    try:
        return tuple(serving.changes(rollout.spec, serving.snapshot(now.deployment_spec())))
    except UserError as refused:
        return tuple(f"{problem.place}: {problem.actual}" for problem in refused.problems)
