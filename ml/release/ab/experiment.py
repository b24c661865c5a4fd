"""An experiment as it was declared: versions, who gets B, what is measured, what would matter."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ml.backends.registry import Version
from ml.core import faults, files, home
from ml.core.errors import Exit, Problem, Refused
from ml.release.ab.sequence import fixed_size, sample_size, score_deviation
from ml.release.declaration.desired_state import endpoint_of
from ml.serving.router.routes import at, position, ticket

SCHEMA_VERSION = 1
Arm = Literal["A", "B"]
Outcome = Literal["binary", "continuous"]
Goal = Literal["maximize", "minimize"]
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True)
class Side:
    """A registered version."""

    version: str
    digest: str


@dataclass(frozen=True)
class Experiment:
    """Never changed once it has begun: another is another experiment.

    `share` is B's, in percent; `salt` deals the keys out. `baseline` is A's rate of a binary
    outcome, `deviation` the standard deviation of a continuous one, each as expected; `effect` is
    the smallest difference that would matter, in the outcome's own unit.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    name: str
    project: str
    model: str
    endpoint: str
    environment: str
    a: Side
    b: Side
    share: int
    salt: str
    outcome: Outcome
    goal: Goal
    effect: float
    alpha: float
    power: float
    baseline: float | None
    deviation: float | None
    started: str

    @property
    def folder(self) -> Path:
        """Where it and what was recorded of it lie."""
        return folder(self.name)

    @property
    def score_deviation(self) -> float:
        """That of one outcome's score, as expected."""
        if self.baseline is None:
            spread_a = spread_b = self.deviation or 0.0
        else:
            # B's rate is the one within an effect of A's that spreads most.
            least, most = self.baseline - self.effect, self.baseline + self.effect
            spread_a, spread_b = _spread(self.baseline), _spread(min(max(0.5, least), most))
        return score_deviation(spread_a, spread_b, self.share / 100)

    @property
    def planned(self) -> int:
        """Outcomes of both versions that show the effect with the power asked for."""
        return sample_size(self.score_deviation, self.effect, self.alpha, self.power)

    @property
    def fixed(self) -> int:
        """The outcomes that a test would need which may be looked at once only."""
        return fixed_size(self.score_deviation, self.effect, self.alpha, self.power)

    def ticket(self, key: str) -> str:
        """The key's number, as the router deals it out."""
        return ticket(key, self.salt)

    def arm(self, ticket: str) -> Arm:
        """Who answers the key of that number: B has the first `share` hundredths, as routed."""
        shares = {"B": self.share, "A": 100 - self.share}
        return "B" if at(position(ticket), shares, "A") == "B" else "A"


_AS_WRITTEN = TypeAdapter(Experiment)


def folder(name: str) -> Path:
    """`ab/<name>/` of the local home."""
    return home.home() / "ab" / name


def begin(
    name: str,
    a: Version,
    b: Version,
    *,
    environment: str,
    outcome: Outcome,
    effect: float,
    baseline: float | None = None,
    deviation: float | None = None,
    share: int = 50,
    goal: Goal = "maximize",
    alpha: float = 0.05,
    power: float = 0.8,
) -> Experiment:
    """Check and keep a new experiment; raises Refused for one that cannot be, or is there."""
    if not _NAME.fullmatch(name):
        raise _refused("ab-name", f"`{name}`", "small letters, digits and hyphens, at most 40")
    if (folder(name) / "experiment.json").exists():
        raise _refused(
            "ab-exists", f"there is an experiment `{name}` already", "another name",
            f"ml ab report {name}",
        )  # fmt: skip
    if a.digest == b.digest:
        raise _refused(
            "ab-same", f"{a.model} {a.version} and {b.version} are the same files", "two models"
        )
    experiment = Experiment(
        name=name,
        project=a.project,
        model=a.model,
        endpoint=endpoint_of(a.model, environment),
        environment=environment,
        a=Side(a.version, a.digest),
        b=Side(b.version, b.digest),
        share=share,
        salt=secrets.token_hex(16),
        outcome=outcome,
        goal=goal,
        effect=effect,
        alpha=alpha,
        power=power,
        baseline=baseline,
        deviation=deviation,
        started=datetime.now(UTC).isoformat(),
    )
    _check(experiment)
    text = json.dumps({"schema_version": SCHEMA_VERSION, **asdict(experiment)}, indent=1) + "\n"
    with faults.as_refusals(), files.locked(experiment.folder / "lock"):
        files.replace(experiment.folder / "experiment.json", text)
    return experiment


def find(name: str) -> Experiment:
    """The experiment of that name; raises Refused when there is none or it cannot be read."""
    if name not in every():
        raise _refused(
            "no-such-experiment",
            f"there is no experiment `{name}`",
            f"one of: {', '.join(every()) or 'none was started yet'}",
            "ml ab start NAME PROJECT --b VERSION …",
        )
    path = folder(name) / "experiment.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("schema_version") != SCHEMA_VERSION:
            raise ValueError("another schema_version")
        experiment = _AS_WRITTEN.validate_json(json.dumps(document))
        if experiment.name != name:
            raise ValueError(f"it is of `{experiment.name}`")
        _check(experiment)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _unreadable(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except Refused as error:
        raise _unreadable(path, error.problems[0].found) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(path, str(error)) from None
    return experiment


def every() -> Sequence[str]:
    """The experiments of this machine, by name."""
    return sorted(path.parent.name for path in folder("").glob("*/experiment.json"))


def _check(experiment: Experiment) -> None:
    """Refuse settings that no experiment can have."""
    for what, sound, expected in (
        (f"share {experiment.share}", 1 <= experiment.share <= 99, "B's percentage, 1 to 99"),
        (f"alpha {experiment.alpha}", 0 < experiment.alpha <= 0.5, "above 0, at most 0.5"),
        (f"power {experiment.power}", 0.5 <= experiment.power < 1, "0.5 to below 1"),
        (f"effect {experiment.effect}", 0 < experiment.effect < math.inf, "a difference above 0"),
    ):
        if not sound:
            raise _refused("ab-setting", what, expected)
    baseline, deviation = experiment.baseline, experiment.deviation
    if experiment.outcome == "binary":
        if (
            baseline is None
            or not 0 < baseline < 1
            or experiment.effect >= 1
            or deviation is not None
        ):
            raise _refused(
                "ab-setting",
                f"baseline {baseline}, effect {experiment.effect}, deviation {deviation}",
                "A's expected rate between 0 and 1, an effect below 1, no deviation",
                "--baseline 0.4 --effect 0.02",
            )
    elif deviation is None or not 0 < deviation < math.inf or baseline is not None:
        raise _refused(
            "ab-setting",
            f"deviation {deviation}, baseline {baseline}",
            "the expected standard deviation of an outcome, no baseline",
            "--deviation 12.5, from what was measured before",
        )
    try:
        _ = experiment.planned, experiment.fixed
    except ArithmeticError:
        raise _refused(
            "ab-setting",
            f"effect {experiment.effect:g}, baseline {baseline}, deviation {deviation}",
            "an effect that outcomes which can be counted show",
        ) from None


def _unreadable(path: Path, why: str) -> Refused:
    return Refused(
        Problem(
            "ab-unreadable",
            f"{path}: {why}",
            "what `ml ab start` wrote",
            f"restore it from a copy, or move {path.parent} away and begin anew",
        ),
        exit_code=Exit.RUN_FAILED,
    )


def _spread(rate: float) -> float:
    return math.sqrt(rate * (1 - rate))


def _refused(code: str, found: str, expected: str, hint: str = "") -> Refused:
    return Refused(Problem(code, found, expected, hint))
