"""How a canary is led: the project's endpoint/canary.yml, or what holds without one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from ml.serving.router.routes import MOST_MIRRORED
from ml.specs import repository
from ml.specs.problems import Place, Problem, Refused

FILE = "canary.yml"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Tolerances:
    """By how much green may be worse than blue before it counts as worse.

    `errors` and `refused` are added shares of the requests (answers of 500 and more or none; of 400
    to 499), `answers` of the answers with a shape that blue's never had. `latency` is a factor on
    the whole distribution, of which the first `latency_ms` milliseconds do not count. `drift` is
    the share of predictions that may lie elsewhere. `memory_mib` is growth of resident memory
    beyond blue's, from the first warm requests on.
    """

    errors: float = 0.002
    refused: float = 0.01
    answers: float = 0.01
    latency: float = 1.4
    latency_ms: float = 2.0
    drift: float = 0.25
    memory_mib: float = 48.0


@dataclass(frozen=True)
class Stage:
    """What green gets for a while: answers that callers see, or copies whose answers are dropped.

    `percent` of the requests, or copies of `mirror` per cent; until it has answered `requests`.
    """

    percent: int
    mirror: int
    requests: int

    def __str__(self) -> str:
        return f"a copy of {self.mirror} %" if self.mirror else f"{self.percent} %"


@dataclass(frozen=True)
class Strategy:
    """Percentages of traffic one after another, and what each asks for.

    With `mirror` they come after a stage in which green gets copies of so many requests, and no
    caller one of its answers.
    `requests` is how many requests green must have answered at each step at least; a signal that is
    not calm by then is given up to `patience` times as many. A step that is not decided within
    `step_s` seconds is rolled back. `false_alarms` bounds the chance that a green no worse than
    tolerated is refused, over all signals and steps together. `prediction` points into an answer
    (`answers/0/entry_id`); without it the drift of predictions is not looked at, and this is said.
    """

    steps: tuple[int, ...] = (10, 50, 100)
    mirror: int = 0
    requests: tuple[int, ...] = (150, 600, 150)
    patience: int = 6
    step_s: float = 300.0
    false_alarms: float = 0.05
    prediction: str = ""
    tolerances: Tolerances = field(default_factory=Tolerances)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Everything that green goes through, in order."""
        shadow = [Stage(0, self.mirror, self.requests[0])] if self.mirror else []
        steps = zip(self.steps, self.requests, strict=True)
        return (*shadow, *(Stage(percent, 0, requests) for percent, requests in steps))


def read(folder: Path) -> Strategy:
    """The strategy of a project's endpoint folder; raises Refused when its file is wrong."""
    path = folder / FILE
    if not path.is_file():
        return Strategy()
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        return made(document)
    except (yaml.YAMLError, TypeError, ValueError, AttributeError) as error:
        place = Place(repository.shown(path), _line(path, str(error)))
        found = str(error).splitlines()[0]
        names = ", ".join(one.name for one in fields(Strategy))
        raise Refused(
            Problem("canary-file", found, f"schema_version {SCHEMA_VERSION}; {names}", place=place)
        ) from None


def made(document: Any) -> Strategy:
    """The strategy of a parsed document; raises ValueError or TypeError with what is wrong.

    Steps that do not end at 100 are given that end: a promotion is never left half way.
    """
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema_version is not {SCHEMA_VERSION}")
    given = {name: value for name, value in document.items() if name != "schema_version"}
    _known(given, Strategy)
    limits = given.pop("tolerances", {})
    _known(limits, Tolerances)
    tolerances = Tolerances(**{name: _number(name, value) for name, value in limits.items()})
    steps = tuple(int(one) for one in given.pop("steps", Strategy.steps))
    if not steps or list(steps) != sorted(set(steps)) or steps[0] < 1 or steps[-1] > 100:
        raise ValueError(f"steps {list(steps)}: percentages that rise, from 1 to 100")
    if steps[0] > 90:
        raise ValueError(f"steps {list(steps)}: the first leaves blue nothing to compare with")
    requests = tuple(int(one) for one in given.pop("requests", ()))
    if steps[-1] != 100:
        steps = (*steps, 100)
        requests = (*requests, requests[-1]) if requests else ()
    if not requests:
        middle = Strategy.requests[1]
        requests = tuple(Strategy.requests[0] if s in (steps[0], 100) else middle for s in steps)
    if len(requests) != len(steps) or min(requests) < 20:
        raise ValueError(f"requests {list(requests)}: at least 20 for each of {list(steps)}")
    alarms = _number("false_alarms", given.pop("false_alarms", Strategy.false_alarms))
    if not 0 < alarms <= 0.5:
        raise ValueError(f"false_alarms {alarms}: above 0, at most 0.5")
    mirror = int(given.pop("mirror", Strategy.mirror))
    if not 0 <= mirror <= MOST_MIRRORED:
        raise ValueError(f"mirror {mirror}: 0 to {MOST_MIRRORED} percent")
    if tolerances.latency < 1:
        raise ValueError(f"latency {tolerances.latency}: a factor of at least 1")
    if tolerances.latency_ms < 0:
        raise ValueError(f"latency_ms {tolerances.latency_ms}: at least 0")
    return Strategy(
        steps=steps,
        mirror=mirror,
        requests=requests,
        patience=max(int(given.pop("patience", Strategy.patience)), 1),
        step_s=_number("step_s", given.pop("step_s", Strategy.step_s)),
        false_alarms=alarms,
        prediction=str(given.pop("prediction", "")),
        tolerances=tolerances,
    )


def _known(given: Any, of: type) -> None:
    names = {one.name for one in fields(of)}
    if not isinstance(given, dict) or (unknown := set(given) - names):
        wrong = ", ".join(map(str, unknown)) if isinstance(given, dict) else given
        raise ValueError(f"{wrong}: not one of {', '.join(sorted(names))}")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"{name} {value}: a number that is not negative")
    return float(value)


def _line(path: Path, message: str) -> int:
    """The line of the field that a message begins with."""
    word = message.split(" ")[0].rstrip(":")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [number for number, line in enumerate(lines, 1) if line.strip().startswith(word)]
    return found[0] if found else 1
