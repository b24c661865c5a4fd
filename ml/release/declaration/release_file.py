"""Parse release.yml: which version serves in which environment, and how the canary runs.

The JSON Schema for editors (`release.schema.json`) is generated from the same types.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, WithJsonSchema
from pydantic.config import JsonDict

from ml.backends.traffic import MAX_MIRRORED
from ml.core import documents, repository, settings
from ml.core.documents import Document
from ml.core.errors import Place, Problem, UserError
from ml.core.imports import ROOT
from ml.core.names import not_words
from ml.core.settings import CLOSED, SchemaVersion
from ml.release.declaration.projects import Project
from policies.promotion import policy
from policies.waivers import Waiver, as_text, lapsed, located

SCHEMA = Path(__file__).with_name("release.schema.json")
SCHEMA_VERSION = 1
# The fields of a declaration; `deployment_digest` and `reason` may be left out.
REQUIRED = ("model", "version", "digest", "evidence", "decision")
HALF = 50
Share = Annotated[float, Field(ge=0, le=1)]
Percent = Annotated[int, Field(ge=1, le=100)]

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

# Each field requires the next one, cyclically: all of them or none.
_ALL_OR_NONE: JsonDict = {
    "reason": [REQUIRED[0]],
    "deployment_digest": [REQUIRED[0]],
    **{name: [after] for name, after in pairwise([*REQUIRED, REQUIRED[0]])},
}


class StrategyError(ValueError):
    """An invalid combination of `traffic` settings, with the field to correct."""

    def __init__(self, field: str, actual: str, expected: str) -> None:
        self.field, self.actual, self.expected = field, actual, expected
        super().__init__(f"{actual}; expected {expected}")


@dataclass(frozen=True)
class Tolerances:
    """By how much green may be worse than the old version before it counts as worse."""

    __pydantic_config__ = CLOSED

    errors: Annotated[
        Share, Field(description="Added share of answers of 500 and more, or none.")
    ] = 0.002
    refused: Annotated[Share, Field(description="Added share of answers of 400 to 499.")] = 0.01
    answers: Annotated[
        Share,
        Field(description="Share of the answers with a shape that the old version's never had."),
    ] = 0.01
    latency: Annotated[
        float,
        Field(
            ge=1,
            description="How many times slower than the baseline green may be, over the whole "
            "distribution.",
        ),
    ] = 1.4
    latency_ms: Annotated[
        float,
        Field(
            ge=0,
            description="Answers within so many milliseconds are never too slow, or within half of "
            "the gate `latency`'s limit where that is less.",
        ),
    ] = 100.0
    drift: Annotated[Share, Field(description="Share of predictions that may lie elsewhere.")] = (
        0.25
    )
    memory_mib: Annotated[
        float,
        Field(
            ge=0,
            description="Growth of resident memory beyond the baseline's, from the first warm "
            "requests on.",
        ),
    ] = 48.0


@dataclass(frozen=True)
class Stage:
    """One stage of a canary: green answers a share of the requests, or gets copies of them."""

    percent: int  # percent of the requests that green answers; 0 while it gets copies
    mirror: int  # percent of the requests that are copied to green; its answers are dropped
    requests: int  # samples that green and the old version must each have answered

    @property
    def balanced(self) -> bool:
        """True if the baseline gets as much traffic as green."""
        return self.percent <= HALF

    def __str__(self) -> str:
        return f"a copy of {self.mirror} %" if self.mirror else f"{self.percent} %"


@dataclass(frozen=True)
class Strategy:
    """The settings of a canary: its steps of traffic, and what each step requires."""

    __pydantic_config__ = CLOSED

    steps: Annotated[
        tuple[Percent, ...],
        Field(
            min_length=1,
            description="Percent of the traffic that green gets, step by step; 100 follows where "
            "it is left out.",
        ),
    ] = (10, 50, 100)
    mirror: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_MIRRORED,
            description="Percent of the requests that are copied to green before the first step; "
            "its answers are dropped. 0 skips this stage.",
        ),
    ] = 0
    requests: Annotated[
        tuple[Annotated[int, Field(ge=20)], ...],
        Field(
            description="How many of the project's samples green must have answered, for each "
            "step at least."
        ),
    ] = (150, 600, 150)
    patience: Annotated[
        int,
        Field(
            ge=1,
            description="A signal that is undecided after `requests` waits for up to so many times "
            "as many.",
        ),
    ] = 6
    step_s: Annotated[
        float,
        Field(gt=0, description="A step that is undecided after so many seconds is rolled back."),
    ] = 3600.0
    false_alarms: Annotated[
        float,
        Field(
            gt=0,
            le=0.5,
            description="Bounds the chance that a green no worse than tolerated is refused, over "
            "all signals and steps together.",
        ),
    ] = 0.05
    prediction: Annotated[
        str,
        Field(
            description="Where an answer holds the prediction (`answers/0/entry_id`). In `local` "
            "it may be left out; the output says that the drift of predictions is not judged."
        ),
    ] = ""
    tolerances: Annotated[
        Tolerances, Field(description="By how much green may be worse before it counts as worse.")
    ] = field(default_factory=Tolerances)

    def within(self, p95_ms: float) -> Strategy:
        """Return the strategy with a latency tolerance of at most half the gate's `p95_ms`."""
        lenient = min(self.tolerances.latency_ms, p95_ms / 2)
        return replace(self, tolerances=replace(self.tolerances, latency_ms=lenient))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the canary, in order."""
        shadow = [Stage(0, self.mirror, self.requests[0])] if self.mirror else []
        steps = zip(self.steps, self.requests, strict=True)
        return (*shadow, *(Stage(percent, 0, requests) for percent, requests in steps))


def _readable(text: str) -> str:
    if text and (problem := not_words(text)):
        raise settings.invalid("text with at least one letter and no invisible character", problem)
    return text


@dataclass(frozen=True)
class ReleaseEntry:
    """A declared version, as `ml release propose` writes it."""

    model: Annotated[
        str,
        Field(
            pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$",
            description="The model, named as the endpoint that serves it.",
        ),
    ] = ""
    version: Annotated[
        str,
        BeforeValidator(as_text),
        Field(pattern="^[1-9][0-9]*$"),
        WithJsonSchema(
            {
                "type": ["string", "integer"],
                "pattern": "^[1-9][0-9]*$",
                "minimum": 1,
                "description": "Its version in the registry.",
            }
        ),
    ] = ""
    digest: Annotated[
        str,
        Field(
            pattern="^sha256:[0-9a-f]{64}$",
            description="Of the whole model folder; verified before anything is touched.",
        ),
    ] = ""
    evidence: Annotated[Sha256, Field(description="The sha256 of the version's evidence.json.")] = (
        ""
    )
    decision: Annotated[
        Sha256, Field(description="The hash of the gates' decision in the audit log.")
    ] = ""
    reason: Annotated[
        str,
        AfterValidator(_readable),
        Field(description="Why to promote a version that was not shown to be better."),
    ] = ""
    # "": the version is served with the project's files at the time of the apply.
    deployment_digest: Annotated[
        Sha256,
        Field(description="Of the serving code and the deployment's settings."),
    ] = ""

    def serves_as(self, entry: ReleaseEntry | None) -> bool:
        """Return whether both have the same model, evidence and serving code."""
        return entry is not None and (self.digest, self.evidence, self.deployment_digest) == (
            entry.digest,
            entry.evidence,
            entry.deployment_digest,
        )


@dataclass(frozen=True)
class EnvironmentEntry(ReleaseEntry):
    """The declared version of an environment, and its canary settings."""

    __pydantic_config__ = ConfigDict(
        **CLOSED, json_schema_extra={"dependentRequired": _ALL_OR_NONE}
    )

    traffic: Annotated[
        Strategy, Field(description="What differs here from the project's `traffic`.")
    ] = field(default_factory=Strategy)


@dataclass(frozen=True, kw_only=True)
class NewField(Waiver):
    """A response field that a new version adds.

    The canary ignores the field when it compares response shapes. It has no effect if the serving
    code is unchanged or the old version's responses have the field, so it hides no change of known
    fields and ends with the rollout.
    """

    __pydantic_config__ = CLOSED
    NAME = "new field"
    LONGEST = timedelta(days=90)

    field: Annotated[
        str,
        Field(
            pattern="^[^/]+(/[^/]+)*$",
            description="Where an answer holds it, as `predictions/0/interval`; a number stands "
            "for every item of a list.",
        ),
    ]

    @property
    def subject(self) -> tuple[str]:
        """The field, as a tuple."""
        return (self.field,)


# The environments that git declares: those of the gate `order` in the repository's own gates.yml.
TRACKED = repository.environments(ROOT)
if TYPE_CHECKING:
    Environments = Mapping[str, EnvironmentEntry | None]
    LocalEnvironments = Mapping[str, EnvironmentEntry | None]
else:
    Environments = settings.mapping(dict.fromkeys(TRACKED, EnvironmentEntry | None), required=False)
    LocalEnvironments = settings.mapping({"local": EnvironmentEntry | None}, required=False)


@dataclass(frozen=True)
class Tracked:
    """The content of a project's release.yml: versions by environment, and canary settings."""

    __pydantic_config__ = CLOSED

    schema_version: SchemaVersion
    environments: Annotated[Environments, Field(description="The environments that git declares.")]
    traffic: Annotated[
        Strategy, Field(description="How a canary is led, unless an environment says otherwise.")
    ] = field(default_factory=Strategy)
    new_fields: Annotated[
        tuple[NewField, ...],
        Field(description="What the next serving code adds to the answers, at most 90 days."),
    ] = ()


@dataclass(frozen=True)
class Local:
    """The content of the declaration of `local`, a file in the local home."""

    __pydantic_config__ = CLOSED

    schema_version: SchemaVersion
    environments: LocalEnvironments


_STRATEGY = TypeAdapter(Strategy)


@dataclass(frozen=True)
class ReleaseFile:
    """A release.yml without problems: its entries and strategies by environment."""

    document: Document
    entries: Mapping[str, EnvironmentEntry]
    strategies: Mapping[str, Strategy]
    new_fields: tuple[NewField, ...] = ()

    def declared(self, environment: str) -> ReleaseEntry | None:
        """Return the version that the environment is to serve; None if none is declared."""
        entry = self.entries.get(environment)
        if entry is None or not entry.model:
            return None
        return ReleaseEntry(
            **{item.name: getattr(entry, item.name) for item in fields(ReleaseEntry)}
        )

    def strategy(self, environment: str) -> Strategy:
        """Return the environment's canary strategy, by default the project's.

        Raises UserError if that of a tracked environment is looser than the organisation policy.
        """
        strategy = self.strategies.get(environment, self.strategies[""])
        if environment in TRACKED and (
            problems := [*_looser_than_policy(strategy, environment, self.document)]
        ):
            raise UserError(*problems)
        return strategy


def read(path: Path, kind: type[Tracked | Local] = Tracked) -> ReleaseFile:
    """Parse the file at `path`; raise UserError with every problem, each with its line."""
    return parse(documents.read(path), kind)


def parse(document: Document, kind: type[Tracked | Local] = Tracked) -> ReleaseFile:
    """Convert a document to a ReleaseFile; raise as `read`."""
    release = settings.read(kind, document)
    entries = {name: entry for name, entry in release.environments.items() if entry}
    problems = [
        problem for name, entry in entries.items() for problem in _gaps(name, entry, document)
    ]
    strategies: dict[str, Strategy] = {}
    for name in ("", *entries):
        try:
            strategies[name] = complete(_traffic(document, name))
        except StrategyError as error:
            problems.append(_unfit(error, name, document))
            if not name:  # an environment's strategy builds on the project's
                break
            continue
        if name and kind is Tracked:
            problems += _looser_than_policy(strategies[name], name, document)
    if problems:
        raise UserError(*problems)
    new_fields = release.new_fields if isinstance(release, Tracked) else ()
    return ReleaseFile(document, entries, strategies, new_fields)


def new_fields(path: Path, today: date) -> tuple[Sequence[str], Sequence[str]]:
    """Return the new fields that are valid today, and a sentence on each that is not.

    Raises as `read`.
    """
    release = read(path)
    declared = located(release.new_fields, release.document, path, "new_fields")
    reasons = {new_field.field: new_field.expired(today) for new_field in declared}
    counting = [name for name, reason in reasons.items() if not reason]
    return counting, [f"{name}: {reason}" for name, reason in reasons.items() if reason]


def check(path: Path) -> Sequence[Problem]:
    """Return the problems of a project's release.yml that can be found without a registry."""
    try:
        release = read(path)
        model = Project(path.parent.name, path.parent).model()
    except UserError as refused:
        return refused.problems
    declared = located(release.new_fields, release.document, path, "new_fields")
    return [
        problem
        for environment, entry in release.entries.items()
        if entry.model
        for problem in _entry_problems(path, environment, entry, model, release.document)
    ] + [*lapsed(declared, datetime.now(UTC).date())]


def evidence_path(file: Path, environment: str) -> Path:
    """Return the path of the evidence copy in the pull request of a tracked declaration."""
    return file.parent / "evidence" / f"{environment}.json"


def other_project(actual: str, model: str, place: Place) -> Problem:
    """Return the problem of a declared model that belongs to another project."""
    expected = f"`{model}`, the model of this project's endpoint"
    hint = "`ml release propose` writes the right one"
    return Problem("model-of-another-project", f"the model `{actual}`", expected, hint, place)


def evidence_edited(file: Path, state: str, sha256: str, place: Place) -> Problem:
    """Return the problem of evidence that differs from the declared hash."""
    return Problem(
        "evidence-edited",
        f"{repository.shown(file)} {state}",
        f"the file with the sha256 {sha256}, as the release declares",
        "restore it from git, or propose the version again",
        place,
    )


def evidence_problem(file: Path, sha256: str, place: Place) -> Problem | None:
    """Return the problem of the evidence copy; None when its hash is the declared one."""
    try:
        is_now = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        return evidence_edited(file, f"cannot be read ({error.strerror})", sha256, place)
    return None if is_now == sha256 else evidence_edited(file, "was changed", sha256, place)


def schema() -> Mapping[str, Any]:
    """Return the JSON Schema of a tracked release.yml."""
    return settings.schema(Tracked)


def complete(traffic: Mapping[str, object]) -> Strategy:
    """Return the strategy of a `traffic` mapping, with the defaults filled in.

    If the last step is not 100, a step of 100 is added. Raise StrategyError for invalid
    combinations.
    """
    strategy = _STRATEGY.validate_python(traffic)
    steps, requests = strategy.steps, strategy.requests if "requests" in traffic else ()
    if list(steps) != sorted(set(steps)):
        raise StrategyError("steps", f"`steps` are {list(steps)}", "percentages that rise")
    if steps[0] > HALF:
        why = f"a first step of at most {HALF}, so that the baseline gets as much traffic as green"
        raise StrategyError("steps", f"`steps` are {list(steps)}", why)
    if steps[-1] != 100:
        steps = (*steps, 100)
        requests = (*requests, requests[-1]) if requests else ()
    if not requests:
        first, middle, _ = Strategy.requests
        requests = tuple(first if percent in (steps[0], 100) else middle for percent in steps)
    if len(requests) != len(steps):
        count = f"`requests` are {len(requests)} numbers"
        raise StrategyError("requests", count, f"one for each step of {list(steps)}")
    return replace(strategy, steps=steps, requests=requests)


def _looser_than_policy(strategy: Strategy, name: str, document: Document) -> Iterator[Problem]:
    """Yield a problem for each canary setting that is looser than the organisation policy's."""
    values = settings_of(strategy)
    for setting, expected in policy.load(policy.CANARY).looser(values):
        keys = setting.split(".")
        places = (("environments", name, "traffic", *keys), ("traffic", *keys))
        stated = (path for path in places if document.get(*path) is not None)
        place = document.place(*next(stated, ("environments", name)))
        actual = f"the canary's `{setting}` in {name} is {values[setting]!r}"
        hint = "a project may only tighten policies/promotion/canary.yml; `local` may loosen it"
        yield Problem("canary-looser-than-policy", actual, expected, hint, place)


def settings_of(strategy: Strategy) -> Mapping[str, Any]:
    """Return the settings that a policy can limit, by dotted name (`tolerances.errors`)."""
    tolerances = {f"tolerances.{key}": value for key, value in vars(strategy.tolerances).items()}
    return {**vars(strategy), **tolerances}


def _traffic(document: Document, environment: str) -> dict[str, Any]:
    """Return the project's `traffic` with the environment's over it, field by field."""
    project = dict(document.get("traffic") or {})
    overrides = (
        document.get("environments", environment, "traffic") if environment else None
    ) or {}
    tolerances = {**project.get("tolerances", {}), **overrides.get("tolerances", {})}
    return {**project, **overrides, **({"tolerances": tolerances} if tolerances else {})}


def _gaps(name: str, entry: EnvironmentEntry, document: Document) -> Iterator[Problem]:
    """Yield a problem if a declaration has some of its fields but not all."""
    missing = [part for part in REQUIRED if not getattr(entry, part)]
    if missing and (len(missing) < len(REQUIRED) or entry.reason):
        # The path is ml/projects/NAME/release.yml, or NAME.yml for the environment `local`.
        path = Path(document.shown)
        project = path.parent.name if path.name == "release.yml" else path.stem
        yield Problem(
            "incomplete-entry",
            f"`{name}` has no {', no '.join(f'`{part}`' for part in missing)}",
            ", ".join(REQUIRED),
            f"`ml release propose {project} --env {name}` writes them",
            document.place("environments", name),
        )


def _unfit(error: StrategyError, environment: str, document: Document) -> Problem:
    environment_keys = ("environments", environment, "traffic")
    keys = (
        environment_keys
        if environment and document.get(*environment_keys, error.field) is not None
        else ("traffic",)
    )
    where = f" in {environment}" if environment else ""
    place = document.place(*keys, error.field)
    return Problem("wrong-value", f"{error.actual}{where}", error.expected, place=place)


def _entry_problems(
    path: Path, environment: str, entry: EnvironmentEntry, model: str | None, document: Document
) -> Iterator[Problem]:
    keys = ("environments", environment)
    if model and entry.model != model:
        yield other_project(entry.model, model, document.place(*keys, "model"))
    place = document.place(*keys, "evidence")
    if problem := evidence_problem(evidence_path(path, environment), entry.evidence, place):
        yield problem
