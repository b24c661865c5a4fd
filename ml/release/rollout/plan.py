"""The steps that `ml release apply` would take; nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ml.backends.base import Backend
from ml.backends.runs import Watch, unwatched
from ml.core.errors import Problem, Refused
from ml.release.declaration import desired_state, projects
from ml.release.declaration.release_file import Declared
from ml.release.rollout.apply import Change, find_change
from ml.serving import endpoint
from policies.promotion.decision import LISTED, Decision


@dataclass(frozen=True)
class LiveVersion:
    """The live version; `url` is None while its server is stopped."""

    version: str
    digest: str
    url: str | None


@dataclass(frozen=True)
class Plan:
    """The plan of an apply; `steps` is empty when nothing is to do or apply would refuse.

    `stops` is the error that apply would raise. A missing sign-off is in `unsigned`, not there.
    """

    project: str
    environment: str
    endpoint: str
    declared: Declared | None
    serving: LiveVersion | None
    champion: str | None
    decision: Decision | None
    steps: Sequence[str]
    stops: Refused | None
    verdict: str

    @property
    def unsigned(self) -> bool:
        """Whether apply needs `--approved-by`."""
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
    """Compare the desired state with this machine; nothing is changed or recorded.

    A champion that was measured on other data is scored again, as in apply. Raises Refused for a
    release.yml or gates.yml that cannot be read.
    """
    desired_state.check_environment(environment)
    target = projects.find(project)
    declared = desired_state.read(target.name, environment)
    name = desired_state.endpoint_of(target.endpoint(), environment)
    serving = _serving(name)

    def report(
        verdict: str,
        change: Change | None = None,
        steps: Sequence[str] = (),
        stops: Refused | None = None,
    ) -> Plan:
        champion = change.check.champion if change else None
        return Plan(
            project=target.name,
            environment=environment,
            endpoint=name,
            declared=declared,
            serving=serving,
            champion=champion.version if champion else None,
            decision=change.check.decision if change else None,
            steps=steps,
            stops=stops,
            verdict=verdict,
        )

    try:
        change = find_change(
            backend, target, environment, step="propose", record=False, watch=watch
        )
    except Refused as refused:
        if declared is None or refused.problems[0].code not in _OF_THE_VERSION:
            raise
        return report("apply would refuse before changing anything", stops=refused)
    if change is None:
        return report(nothing_declared(serving))
    version = change.version.version
    if not change.is_champion and not change.check.decision.allowed:
        gates = ", ".join(result.gate for result in change.check.decision.blocking)
        return report(f"refused: gates that failed for version {version}: {gates}", change)
    running = serving is not None and serving.url is not None
    if change.serves and running:  # its files were verified when it was loaded
        return report(*_when_live(change, serving))
    try:
        endpoint.check_model(change.launch)
    except Refused as refused:
        return report("apply would refuse before changing anything", change, stops=refused)
    if change.serves:
        return report(*_when_live(change, serving))
    if (before := change.refusal) is not None:
        return report(
            "apply would refuse: this version was rolled back before", change, stops=before
        )
    steps = tuple(_steps(change, serving))
    return report(f"{len(steps)} steps to version {version}", change, steps)


def nothing_declared(serving: LiveVersion | None) -> str:
    """The verdict on an environment without a declaration, which is not an error."""
    if serving is None:
        return "no model yet: nothing is declared and nothing serves"
    return f"nothing is declared; version {serving.version} keeps serving"


# Errors that apply raises for a declared version before it runs the gates.
_OF_THE_VERSION = frozenset(
    {"not-as-declared", "no-such-version", "model-of-another-project", "evidence-edited"}
)


def _serving(name: str) -> LiveVersion | None:
    live = endpoint.live(name)
    if live is None:
        return None
    return LiveVersion(live.launch.version, live.launch.digest, endpoint.url(name))


def _when_live(change: Change, serving: LiveVersion | None) -> tuple[str, Change, Sequence[str]]:
    """The remaining steps for a version that is live."""
    version = change.version.version
    steps = []
    if serving is not None and serving.url is None:
        steps.append(f"start the server of version {version}")
    if not change.is_champion:
        steps.append(f"finish the interrupted rollout: version {version} becomes champion")
    if change.live is not None and change.live.canary is not None:
        steps.append(f"stop the leftover canary: {change.live.canary.launch.version}")
    if steps:
        return f"version {version} is live; {len(steps)} steps remain", change, steps
    return f"nothing to do: version {version} serves as declared", change, ()


def _steps(change: Change, serving: LiveVersion | None) -> Sequence[str]:
    launch = change.launch
    version = launch.version
    beside = f" beside version {serving.version}" if serving else ""
    back = change.history.served_before(launch)
    return [
        *_listed(change.differences),
        f"verify the digest {launch.digest[:19]}… of the model folder (it matches now)",
        f"start version {version}{beside}",
        f"smoke test: send it {len(change.samples)} sample requests and check the digest",
        *_canary(change, serving),
        f"give version {version} all the traffic; it becomes champion of {change.environment}",
        *(
            [f"stop version {serving.version} once its open requests are answered"]
            if serving
            else []
        ),
        f"record who approved the {'return' if back else 'release'}",
    ]


def _listed(differences: Sequence[str]) -> Sequence[str]:
    """The first differences of what serves, and how many more there are."""
    if not differences:
        return []
    more = len(differences) - LISTED
    shown = [*differences[:LISTED], *([f"{more} more"] if more > 0 else [])]
    return ["serving changes: " + "; ".join(shown)]


def _canary(change: Change, serving: LiveVersion | None) -> Sequence[str]:
    if serving is None:
        return ["no canary: no version serves to compare with"]
    if change.history.served_before(change.launch):
        return ["no canary: this version served here before"]
    strategy = change.strategy
    return [
        f"{stage} of the requests until {stage.requests} are answered, against version "
        f"{serving.version}; back at once when it is worse"
        for stage in strategy.stages
    ]


def _problem(problem: Problem) -> Mapping[str, object]:
    return {**asdict(problem), "place": str(problem.place) if problem.place else None}
