"""What `ml release apply` would do, step by step, told without doing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ml.backends.base import Backend, Watch, unwatched
from ml.core.errors import Problem, Refused
from ml.release.declaration import desired_state, projects
from ml.release.declaration.desired_state import Declared
from ml.release.rollout.apply import Course, chart
from ml.serving import endpoint
from policies.promotion.decision import Decision


@dataclass(frozen=True)
class Serving:
    """What is live: `url` is None while its server is stopped."""

    version: str
    digest: str
    url: str | None


@dataclass(frozen=True)
class Plan:
    """What there is to do; `steps` are sentences, none when nothing is or something is in the way.

    `stops` is what apply would refuse with. A missing sign-off stops nothing yet: `unsigned`.
    """

    project: str
    environment: str
    endpoint: str
    declared: Declared | None
    serving: Serving | None
    champion: str | None
    decision: Decision | None
    steps: Sequence[str]
    stops: Refused | None
    verdict: str

    @property
    def unsigned(self) -> bool:
        """Whether apply will ask who stands for it."""
        pending = self.decision is not None and self.decision.outcome == "pending"
        return pending and bool(self.steps)

    def to_json(self) -> Mapping[str, object]:
        """As JSON takes it."""
        stops = self.stops.problems[0] if self.stops else None
        return {
            "project": self.project,
            "environment": self.environment,
            "endpoint": self.endpoint,
            "declared": asdict(self.declared) if self.declared else None,
            "serving": asdict(self.serving) if self.serving else None,
            "champion": self.champion,
            "decision": self.decision.to_json() if self.decision else None,
            "to_do": bool(self.steps),
            "steps": list(self.steps),
            "unsigned": self.unsigned,
            "stops": _problem(stops) if stops else None,
            "verdict": self.verdict,
        }


def plan(
    backend: Backend,
    project: str,
    environment: str = desired_state.LOCAL,
    *,
    watch: Watch = unwatched,
) -> Plan:
    """Compare what is declared with what is on this machine; nothing is changed or written down.

    A champion whose evidence is of other data is scored again, as apply will. Raises Refused for a
    release.yml or gates.yml that cannot be read.
    """
    desired_state.check_environment(environment)
    found = projects.find(project)
    declared = desired_state.read(found.name, environment)
    name = desired_state.endpoint_of(found.deployment().endpoint, environment)
    serving = _serving(name)

    def made(
        verdict: str,
        course: Course | None = None,
        steps: Sequence[str] = (),
        stops: Refused | None = None,
    ) -> Plan:
        champion = course.judged.champion if course else None
        return Plan(
            project=found.name,
            environment=environment,
            endpoint=name,
            declared=declared,
            serving=serving,
            champion=champion.version if champion else None,
            decision=course.judged.decision if course else None,
            steps=steps,
            stops=stops,
            verdict=verdict,
        )

    try:
        course = chart(backend, found, environment, step="propose", noted=False, watch=watch)
    except Refused as refused:
        if declared is None or refused.problems[0].code not in _OF_THE_VERSION:
            raise
        return made("it would be refused before anything is touched", stops=refused)
    if course is None:
        return made(nothing_declared(serving))
    version = course.release.version.version
    if not course.is_champion and not course.judged.decision.allowed:
        gates = ", ".join(one.gate for one in course.judged.decision.blocking)
        return made(f"refused: gates that say no to version {version}: {gates}", course)
    running = serving is not None and serving.url is not None
    if course.serves and running:  # it was looked at when it was loaded
        return made(*_settled(course, serving))
    try:
        endpoint.check_model(course.release.launch)
    except Refused as refused:
        return made("it would be refused before anything is touched", course, stops=refused)
    if course.serves:
        return made(*_settled(course, serving))
    if (before := course.history.refusal(course.release)) is not None:
        return made("it would be refused, as it was before", course, stops=before)
    steps = tuple(_steps(course, serving))
    return made(f"{len(steps)} steps to version {version}", course, steps)


def nothing_declared(serving: Serving | None) -> str:
    """What is said of an environment without a declaration: no error, a model may yet come."""
    if serving is None:
        return "no model yet: nothing is declared and nothing serves"
    return f"nothing is declared; version {serving.version} goes on serving"


# What apply refuses a declared version for, before any gate is asked.
_OF_THE_VERSION = frozenset(
    {"not-as-declared", "no-such-version", "model-of-another-project", "evidence-edited"}
)


def _serving(name: str) -> Serving | None:
    live = endpoint.live(name)
    if live is None:
        return None
    return Serving(live.launch.version, live.launch.digest, endpoint.url(name))


def _settled(course: Course, serving: Serving | None) -> tuple[str, Course, Sequence[str]]:
    """What is left to do about a version that is live."""
    version = course.release.version.version
    steps = []
    if serving is not None and serving.url is None:
        steps.append(f"start the server of version {version}")
    if not course.is_champion:
        steps.append(f"finish the rollout that was killed: version {version} becomes champion")
    if course.live is not None and course.live.canary is not None:
        steps.append(f"stop the canary that was left: {course.live.canary.launch.version}")
    if steps:
        return f"version {version} is live; not all is done", course, steps
    return f"nothing to do: version {version} serves as declared", course, ()


def _steps(course: Course, serving: Serving | None) -> Sequence[str]:
    release, launch = course.release, course.release.launch
    version = launch.version
    beside = f" beside version {serving.version}" if serving else ""
    back = course.history.served_before(launch)
    return [
        f"verify the digest {launch.digest[:19]}… of the model folder: it holds now",
        f"start version {version}{beside}",
        f"send it the {len(release.samples)} sample requests; each is answered by that digest",
        *_canary(course, serving),
        f"give version {version} all the traffic; it becomes champion of {release.environment}",
        *([f"stop version {serving.version} when it has answered what it has"] if serving else []),
        f"write down who stood for {'going back' if back else 'it'}",
    ]


def _canary(course: Course, serving: Serving | None) -> Sequence[str]:
    if serving is None:
        return ["no canary: there is no version to compare with"]
    if course.history.served_before(course.release.launch):
        return ["no canary: this version served here before"]
    strategy = course.release.strategy
    return [
        f"{stage} of the requests until {stage.requests} are answered, against version "
        f"{serving.version}; back at once when it is worse"
        for stage in strategy.stages
    ]


def _problem(problem: Problem) -> Mapping[str, object]:
    return {**asdict(problem), "place": str(problem.place) if problem.place else None}
