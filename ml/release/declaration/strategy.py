"""How a canary is led: `traffic` in a project's release.yml, or what holds without it.

The JSON Schema for editors is made of these types (`ml.release.declaration.release_file`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field, TypeAdapter

from ml.core.settings import CLOSED
from ml.serving.router.routes import MAX_MIRRORED

HALF = 50
Share = Annotated[float, Field(ge=0, le=1)]
Percent = Annotated[int, Field(ge=1, le=100)]


class StrategyError(ValueError):
    """Fields that do not fit together: which, what was found, what was expected."""

    def __init__(self, field: str, found: str, expected: str) -> None:
        self.field, self.found, self.expected = field, found, expected
        super().__init__(f"{found}; expected {expected}")


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
    """Green's share for a while: requests that it answers, or copies whose answers are dropped.

    `percent` of the requests, or copies of `mirror` per cent; until it has answered `requests`.
    """

    percent: int
    mirror: int
    requests: int

    @property
    def balanced(self) -> bool:
        """Whether a baseline gets as much as green."""
        return self.percent <= HALF

    def __str__(self) -> str:
        return f"a copy of {self.mirror} %" if self.mirror else f"{self.percent} %"


@dataclass(frozen=True)
class Strategy:
    """Percentages of traffic one after another, and what each asks for."""

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
        Field(description="How many requests green must have answered, for each step at least."),
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
            description="Where an answer holds the prediction (`answers/0/entry_id`); without it "
            "the drift of predictions is not judged, and the output says so."
        ),
    ] = ""
    tolerances: Annotated[
        Tolerances, Field(description="By how much green may be worse before it counts as worse.")
    ] = field(default_factory=Tolerances)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Everything that green goes through, in order."""
        shadow = [Stage(0, self.mirror, self.requests[0])] if self.mirror else []
        steps = zip(self.steps, self.requests, strict=True)
        return (*shadow, *(Stage(percent, 0, requests) for percent, requests in steps))


_STRATEGY = TypeAdapter(Strategy)


def complete(traffic: Mapping[str, object]) -> Strategy:
    """The strategy of a valid `traffic`, with the defaults filled in; raises StrategyError.

    Steps that do not end at 100 get 100 as their last: a promotion never stops half way.
    """
    strategy = _STRATEGY.validate_python(traffic)
    steps, requests = strategy.steps, strategy.requests if "requests" in traffic else ()
    if list(steps) != sorted(set(steps)):
        raise StrategyError("steps", f"`steps` are {list(steps)}", "percentages that rise")
    if steps[0] > HALF:
        why = f"a first step of at most {HALF} that leaves a baseline as much as green gets"
        raise StrategyError("steps", f"`steps` are {list(steps)}", why)
    if steps[-1] != 100:
        steps = (*steps, 100)
        requests = (*requests, requests[-1]) if requests else ()
    if not requests:
        first, middle, _ = Strategy.requests
        requests = tuple(first if percent in (steps[0], 100) else middle for percent in steps)
    if len(requests) != len(steps):
        found = f"`requests` are {len(requests)} numbers"
        raise StrategyError("requests", found, f"one for each step of {list(steps)}")
    return replace(strategy, steps=steps, requests=requests)
