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

from ml.backends.local import faults, home
from ml.release.ab.sequence import fixed_size, sample_size, score_deviation
from ml.release.desired import endpoint_of
from ml.release.registry import Version
from ml.serving import files
from ml.serving.router.routes import allotted, place, ticket
from ml.specs.problems import Exit, Problem, Refused

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
            rates = (self.baseline, min(self.baseline + self.effect, 0.5))
            spread_a = _spread(self.baseline)
            spread_b = max(map(_spread, rates))
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
        return "B" if allotted(place(ticket), shares, "A") == "B" else "A"


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
    for what, sound, expected in (
        (f"share {share}", 1 <= share <= 99, "B's percentage, 1 to 99"),
        (f"alpha {alpha}", 0 < alpha <= 0.5, "above 0, at most 0.5"),
        (f"power {power}", 0.5 <= power < 1, "0.5 to below 1"),
        (f"effect {effect}", math.isfinite(effect) and effect > 0, "a difference above 0"),
    ):
        if not sound:
            raise _refused("ab-setting", what, expected)
    if outcome == "binary":
        if baseline is None or not 0 < baseline < 1 or effect >= 1 or deviation is not None:
            raise _refused(
                "ab-setting",
                f"baseline {baseline}, effect {effect}, deviation {deviation}",
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
    made = Experiment(
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
    text = json.dumps({"schema_version": SCHEMA_VERSION, **asdict(made)}, indent=1) + "\n"
    with faults.told(), files.locked(made.folder / "lock"):
        files.replace(made.folder / "experiment.json", text)
    return made


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
        sides = {side: Side(**document[side]) for side in ("a", "b")}
        return Experiment(**{**document, **sides})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = Problem("ab-unreadable", f"{path}: {error}", "what `ml ab start` wrote")
        raise Refused(problem, exit_code=Exit.RUN_FAILED) from None


def every() -> Sequence[str]:
    """The experiments of this machine, by name."""
    return sorted(path.parent.name for path in folder("").glob("*/experiment.json"))


def _spread(rate: float) -> float:
    return math.sqrt(rate * (1 - rate))


def _refused(code: str, found: str, expected: str, hint: str = "") -> Refused:
    return Refused(Problem(code, found, expected, hint))
