"""Declare A/B experiments: versions, B's share, the kind of outcome, the smallest effect."""

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

from ml.backends.base import Backend
from ml.backends.model_registry import Version
from ml.backends.traffic import choose, position, ticket
from ml.core import faults, files, home, names
from ml.core.errors import Exit, UserError
from ml.release.ab.sequence import fixed_size, sample_size, score_deviation

Arm = Literal["A", "B"]
Outcome = Literal["binary", "continuous"]
Goal = Literal["maximize", "minimize"]
TICKET = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Variant:
    """A registered version."""

    version: str
    digest: str


@dataclass(frozen=True)
class Experiment:
    """The declaration of an experiment; it never changes."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    schema_version: Literal[1]
    name: str
    project: str
    model: str
    endpoint: str
    environment: str
    a: Variant
    b: Variant
    share: int  # percentage of the keys that B gets, 1 to 99
    salt: str  # hashed with a key to assign it to A or B
    outcome: Outcome
    goal: Goal
    effect: float  # smallest difference that matters, in the unit of the outcome
    alpha: float
    power: float
    baseline: float | None  # A's expected rate; None for a continuous outcome
    deviation: float | None  # expected standard deviation; None for a binary outcome
    started: str  # ISO 8601, UTC
    place: str = "local"  # name of the backend that has the endpoint

    @property
    def folder(self) -> Path:
        """The folder of its declaration and records."""
        return folder(self.name)

    @property
    def score_deviation(self) -> float:
        """The expected standard deviation of one outcome's score."""
        if self.baseline is None:
            spread_a = spread_b = self.deviation or 0.0
        else:
            # B's rate is unknown: take the rate within `effect` of A's that has the largest spread.
            least, most = self.baseline - self.effect, self.baseline + self.effect
            spread_a, spread_b = _spread(self.baseline), _spread(min(max(0.5, least), most))
        return score_deviation(spread_a, spread_b, self.share / 100)

    @property
    def planned(self) -> int:
        """The sample size, of both versions, to detect the effect with the declared power."""
        return sample_size(self.score_deviation, self.effect, self.alpha, self.power)

    @property
    def fixed_sample_size(self) -> int:
        """The sample size of a fixed-horizon test, which analyses the data once."""
        return fixed_size(self.score_deviation, self.effect, self.alpha, self.power)

    def ticket(self, key: str) -> str:
        """Return the key's ticket, as the router computes it."""
        return ticket(key, self.salt)

    def request_id(self, key: str) -> str:
        """Return the `x-request-id` that callers send, which joins collected answers to the key.

        Callers may append `.` and any text.
        """
        return f"{self._mark}{self.ticket(key)}"

    def requested(self, request_id: str) -> str:
        """Return the ticket in a request id; "" if the id is not one of this experiment."""
        ticket = request_id.removeprefix(self._mark).partition(".")[0]
        is_ours = request_id.startswith(self._mark) and TICKET.fullmatch(ticket)
        return ticket if is_ours else ""

    @property
    def _mark(self) -> str:
        return f"ab.{self.name}."

    def arm(self, ticket: str) -> Arm:
        """Return the version that the ticket is assigned to; B has `share` percent of them."""
        shares = {"B": self.share, "A": 100 - self.share}
        return "B" if choose(position(ticket), shares, "A") == "B" else "A"


_DOCUMENT = TypeAdapter(Experiment)


def folder(name: str) -> Path:
    """Return the folder `ab/<name>/` in the local home."""
    return home.home() / "ab" / names.check("split test", name)


def declare(
    backend: Backend,
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
    """Check, store and return a new experiment; raise UserError if settings or name are invalid."""
    if (folder(name) / "experiment.json").exists():
        existing = f"there is an experiment `{name}` already"
        raise UserError.with_code("ab-exists", existing, "another name", f"ml ab report {name}")
    if a.digest == b.digest:
        same = f"{a.model} {a.version} and {b.version} have the same files"
        raise UserError.with_code("ab-same", same, "two models", "name another version with --b")
    experiment = Experiment(
        schema_version=1,
        name=name,
        project=a.project,
        model=a.model,
        endpoint=backend.endpoints.name_of(a.model, environment),
        environment=environment,
        a=Variant(a.version, a.digest),
        b=Variant(b.version, b.digest),
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
        place=backend.name,
    )
    _check(experiment)
    text = json.dumps(asdict(experiment), indent=1) + "\n"
    with faults.as_user_errors(), files.locked(experiment.folder / "lock"):
        files.replace(experiment.folder / "experiment.json", text)
    return experiment


def find(name: str) -> Experiment:
    """Return the experiment of that name; raise UserError if it is missing or unreadable."""
    names.check("split test", name)
    if name not in every():
        raise UserError.with_code(
            "no-such-experiment",
            f"there is no experiment `{name}`",
            f"one of: {', '.join(every())}" if every() else "a started experiment",
            f"ml ab start {name} PROJECT --b VERSION …",
        )
    path = folder(name) / "experiment.json"
    try:
        experiment = _DOCUMENT.validate_json(path.read_bytes())
        if experiment.name != name:
            raise ValueError(f"it declares `{experiment.name}`")
        _check(experiment)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _unreadable(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except UserError as error:
        raise _unreadable(path, error.problems[0].actual) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from None
    return experiment


def every() -> Sequence[str]:
    """Return the names of the experiments on this machine."""
    return sorted(path.parent.name for path in (home.home() / "ab").glob("*/experiment.json"))


def _check(experiment: Experiment) -> None:
    """Raise UserError for settings that are out of range or inconsistent."""
    for setting, valid, expected in (
        (f"share {experiment.share}", 1 <= experiment.share <= 99, "B's percentage, 1 to 99"),
        (f"alpha {experiment.alpha}", 0 < experiment.alpha <= 0.5, "above 0, at most 0.5"),
        (f"power {experiment.power}", 0.5 <= experiment.power < 1, "0.5 to below 1"),
        (f"effect {experiment.effect}", 0 < experiment.effect < math.inf, "a difference above 0"),
    ):
        if not valid:
            raise UserError.with_code("ab-setting", setting, expected)
    baseline, deviation = experiment.baseline, experiment.deviation
    if experiment.outcome == "binary":
        if (
            baseline is None
            or not 0 < baseline < 1
            or experiment.effect >= 1
            or deviation is not None
        ):
            raise UserError.with_code(
                "ab-setting",
                f"baseline {baseline}, effect {experiment.effect}, deviation {deviation}",
                "A's expected rate between 0 and 1, an effect below 1, no deviation",
                "--baseline 0.4 --effect 0.02",
            )
    elif deviation is None or not 0 < deviation < math.inf or baseline is not None:
        raise UserError.with_code(
            "ab-setting",
            f"deviation {deviation}, baseline {baseline}",
            "the expected standard deviation of an outcome, no baseline",
            "--deviation 12.5, from earlier measurements",
        )
    try:
        _ = experiment.planned, experiment.fixed_sample_size
    except ArithmeticError:
        raise UserError.with_code(
            "ab-setting",
            f"effect {experiment.effect:g}, baseline {baseline}, deviation {deviation}",
            "an effect that a feasible number of outcomes can detect",
            "raise --effect",
        ) from None


def _unreadable(path: Path, why: str) -> UserError:
    return UserError.with_code(
        "ab-unreadable",
        f"{path}: {why}",
        "the file as `ml ab start` wrote it",
        f"restore it from a copy, or move {path.parent} away and start another",
        exit_code=Exit.RUN_FAILED,
    )


def _spread(rate: float) -> float:
    """Return the standard deviation of a binary outcome."""
    return math.sqrt(rate * (1 - rate))
