"""Who was assigned and what came of it: an append-only file, a JSON line a record.

Keys stand there as tickets, which nobody can read back without the experiment's salt. Whom the
router sent somewhere is in a file of its own beside the endpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ml.core import faults, files
from ml.core.errors import Problem, Refused
from ml.release.ab.experiment import Arm, Experiment
from ml.release.ab.sequence import Flags, Floats
from ml.serving import endpoint
from ml.serving.router.records import EXPOSED

FILE = "records.jsonl"
LARGEST = 1e100
# Unknown keys that a message names.
_NAMED = 5


@dataclass(frozen=True)
class Records:
    """What is known of an experiment; a key counts once, with its first outcome.

    `assigned` is by ticket, `outcomes` in the order in which they came. `repeated` outcomes were
    the same again, `contradicting` ones were another value of a key that had one, `unreadable` are
    lines that are none (a kill in the middle of one) or of nobody.
    """

    assigned: Mapping[str, Arm]
    outcomes: Sequence[tuple[Arm, float]]
    repeated: int
    contradicting: int
    unreadable: int

    @property
    def is_b(self) -> Flags:
        """Whose each outcome is."""
        return np.array([arm == "B" for arm, _ in self.outcomes], dtype=np.bool_)

    @property
    def values(self) -> Floats:
        """The outcomes."""
        return np.array([value for _, value in self.outcomes], dtype=np.float64)


def assign(experiment: Experiment, keys: Sequence[str]) -> Mapping[str, Arm]:
    """Who answers each key, written down for those that were not assigned before."""
    tickets = {key: experiment.ticket(key) for key in keys}
    with faults.as_refusals(), _held(experiment):
        assigned = read(experiment).assigned
        now = datetime.now(UTC).timestamp()
        new = dict.fromkeys(one for one in tickets.values() if one not in assigned)
        _add(experiment, [{"at": now, "event": "assigned", "id": one} for one in new])
    return {key: experiment.arm(one) for key, one in tickets.items()}


def record(experiment: Experiment, outcomes: Sequence[tuple[str, float]]) -> int:
    """Add outcomes by key, all or none; returns how many keys had none before.

    Raises Refused for a key that was never assigned and for a value that cannot be one.
    """
    for key, value in outcomes:
        if not _sound(value, experiment):
            expected = "0 or 1" if experiment.outcome == "binary" else "a number below 1e100"
            raise Refused(Problem("bad-outcome", f"{value} for the key `{key}`", expected))
    with faults.as_refusals(), _held(experiment):
        records, counted = _replay(experiment)
        tickets = [(experiment.ticket(key), value) for key, value in outcomes]
        unknown = [
            key
            for (key, _), (one, _) in zip(outcomes, tickets, strict=True)
            if one not in records.assigned
        ]
        if unknown:
            raise _unknown(experiment, unknown)
        now = datetime.now(UTC).timestamp()
        _add(
            experiment,
            [{"at": now, "event": "outcome", "id": one, "value": value} for one, value in tickets],
        )
    return len({one for one, _ in tickets} - counted.keys())


def read(experiment: Experiment) -> Records:
    """Everything that was recorded; a line that cannot be read is counted and left out."""
    return _replay(experiment)[0]


def _replay(experiment: Experiment) -> tuple[Records, Mapping[str, float]]:
    """The records, and the outcome by ticket."""
    assigned: dict[str, Arm] = {}
    counted: dict[str, float] = {}
    repeated = contradicting = unreadable = 0
    exposed = endpoint.folder(experiment.endpoint) / EXPOSED / f"{experiment.name}.jsonl"
    for line in (*_lines(exposed), *_lines(experiment.folder / FILE)):
        one = line.get("id")
        if not isinstance(one, str) or len(one) != 16 or set(one) - set("0123456789abcdef"):
            unreadable += 1
        elif line.get("event") == "assigned":
            assigned[one] = experiment.arm(one)
        elif one not in assigned or not _is_outcome(line, experiment):
            unreadable += 1
        elif one not in counted:
            counted[one] = float(line["value"])
        elif counted[one] == line["value"]:
            repeated += 1
        else:
            contradicting += 1
    outcomes = [(assigned[one], value) for one, value in counted.items()]
    return Records(assigned, outcomes, repeated, contradicting, unreadable), counted


def _is_outcome(line: Mapping[str, Any], experiment: Experiment) -> bool:
    return line.get("event") == "outcome" and _sound(line.get("value"), experiment)


def _sound(value: Any, experiment: Experiment) -> bool:
    """Whether it is an outcome: squares of larger numbers would be infinite, NaN is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value in (0, 1) if experiment.outcome == "binary" else abs(value) < LARGEST


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    if not path.is_file():
        return
    with path.open("rb") as stream:
        for text in stream:
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                line = None
            yield line if isinstance(line, dict) else {}


def _add(experiment: Experiment, lines: Sequence[Mapping[str, object]]) -> None:
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    if content:
        files.append(experiment.folder / FILE, content, durable=True)


def _held(experiment: Experiment) -> Any:
    return files.locked(experiment.folder / "lock")


def _unknown(experiment: Experiment, keys: Sequence[str]) -> Refused:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return Refused(
        Problem(
            "unknown-key",
            f"never assigned: {', '.join(keys[:_NAMED])}{more}; nothing was recorded",
            "keys that the endpoint was asked with (x-routing-key), or that were assigned",
            f"ml ab assign {experiment.name} KEY…",
        )
    )
