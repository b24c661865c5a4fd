"""The records of an experiment: assignments and outcomes, JSON lines of an append-only file.

Keys are stored as tickets: hashes that nobody can match to a key without the experiment's salt. If
an endpoint splits the keys itself, its router writes the assignments to its own file. Otherwise
callers name the deployment, and the ids of collected requests show whether they did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import numpy as np

from ml.backends.base import Backend
from ml.core import faults, files
from ml.core.errors import UserError
from ml.release.ab.experiment import TICKET, Arm, Experiment
from ml.release.ab.sequence import Flags, Floats
from policies.promotion.decision import listed

FILE = "records.jsonl"
LARGEST = 1e100
_SKIPPED = ("repeated", "contradicting", "unreadable")


@dataclass(frozen=True)
class Records:
    """The records so far; a key counts once, with its first outcome."""

    assigned: Mapping[str, Arm]  # ticket of a key → its version
    outcomes: Sequence[tuple[Arm, float]]  # in the order of arrival
    repeated: int  # later outcomes of a key with the same value
    contradicting: int  # later outcomes of a key with another value
    unreadable: int  # invalid lines, and outcomes of keys that were never assigned
    misrouted: int = 0  # keys with a request that the wrong version answered; excluded above

    @property
    def is_b(self) -> Flags:
        """For each outcome, True if its key is assigned to B."""
        return np.array([arm == "B" for arm, _ in self.outcomes], dtype=np.bool_)

    @property
    def values(self) -> Floats:
        """The outcomes as numbers."""
        return np.array([value for _, value in self.outcomes], dtype=np.float64)


def assign(backend: Backend, experiment: Experiment, keys: Sequence[str]) -> Mapping[str, Arm]:
    """Return the version (arm) for each key, and record new assignments."""
    tickets = {key: experiment.ticket(key) for key in keys}
    with faults.as_user_errors(), files.locked(experiment.folder / "lock"):
        assigned = _replay(backend, experiment)[0]
        now = datetime.now(UTC).timestamp()
        new = dict.fromkeys(ticket for ticket in tickets.values() if ticket not in assigned)
        _add(experiment, [{"at": now, "event": "assigned", "id": ticket} for ticket in new])
    return {key: experiment.arm(ticket) for key, ticket in tickets.items()}


def record(backend: Backend, experiment: Experiment, outcomes: Sequence[tuple[str, float]]) -> int:
    """Add (key or request id, value) outcomes; return how many keys had no outcome before.

    Raises UserError, and adds none, if a key was never assigned or a value is invalid.
    """
    for key, value in outcomes:
        if not _is_outcome(value, experiment):
            expected = "0 or 1" if experiment.outcome == "binary" else "a number below 1e100"
            raise UserError.with_code(
                "bad-outcome", f"{value} for the key `{key}`", expected, "correct it"
            )
    with faults.as_user_errors(), files.locked(experiment.folder / "lock"):
        assigned, counted = _replay(backend, experiment)[:2]
        tickets = {key: experiment.requested(key) or experiment.ticket(key) for key, _ in outcomes}
        if unknown := [key for key, _ in outcomes if tickets[key] not in assigned]:
            raise _unknown(experiment, unknown)
        line = {"at": datetime.now(UTC).timestamp(), "event": "outcome"}
        _add(experiment, [{**line, "id": tickets[key], "value": value} for key, value in outcomes])
    return len({*tickets.values()} - counted.keys())


def read(backend: Backend, experiment: Experiment) -> Records:
    """Return the records so far; unreadable lines are counted and left out."""
    assigned, counted, skipped = _replay(backend, experiment)
    misrouted = _misrouted(backend, experiment)
    arms = {ticket: arm for ticket, arm in assigned.items() if ticket not in misrouted}
    outcomes = [(arms[ticket], value) for ticket, value in counted.items() if ticket in arms]
    return Records(arms, outcomes, **skipped, misrouted=len(misrouted))


def _replay(
    backend: Backend, experiment: Experiment
) -> tuple[Mapping[str, Arm], Mapping[str, float], Mapping[str, int]]:
    """Return the versions and the outcomes by ticket, and the number of skipped lines by reason."""
    assigned: dict[str, Arm] = {}
    counted: dict[str, float] = {}
    skipped = dict.fromkeys(_SKIPPED, 0)
    exposed, path = backend.endpoints.exposed, experiment.folder / FILE
    split = exposed(experiment.endpoint, experiment.name) if exposed else ()
    for line in chain(split, files.json_lines(path) if path.is_file() else ()):
        ticket, event = line.get("id"), line.get("event")
        value: Any = line.get("value")
        if not isinstance(ticket, str) or not TICKET.fullmatch(ticket):
            skipped["unreadable"] += 1
        elif event == "assigned":
            assigned[ticket] = experiment.arm(ticket)
        elif event != "outcome" or ticket not in assigned or not _is_outcome(value, experiment):
            skipped["unreadable"] += 1
        elif ticket not in counted:
            counted[ticket] = float(value)
        else:
            skipped["repeated" if counted[ticket] == value else "contradicting"] += 1
    return assigned, counted, skipped


def _misrouted(backend: Backend, experiment: Experiment) -> Set[str]:
    """Return the tickets of collected requests that the wrong version answered.

    Empty if the endpoint splits the keys itself.
    """
    if backend.endpoints.exposed is not None:
        return frozenset()
    wrong_digests = {"A": experiment.b.digest, "B": experiment.a.digest}
    since = datetime.fromisoformat(experiment.started).timestamp()
    return {
        ticket
        for line in backend.endpoints.collected(experiment.endpoint, since)
        if (ticket := experiment.requested(str(line.get("id", ""))))
        and line.get("digest") == wrong_digests[experiment.arm(ticket)]
    }


def _is_outcome(value: Any, experiment: Experiment) -> bool:
    """Return whether the value is a valid outcome; larger numbers would overflow when squared."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value in (0, 1) if experiment.outcome == "binary" else abs(value) < LARGEST


def _add(experiment: Experiment, lines: Sequence[Mapping[str, object]]) -> None:
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    if content:
        files.append(experiment.folder / FILE, content, durable=True)


def _unknown(experiment: Experiment, keys: Sequence[str]) -> UserError:
    return UserError.with_code(
        "unknown-key",
        f"these keys were never assigned: {listed(keys)}; no outcome was recorded",
        "keys that requests carried (x-routing-key), or that were assigned",
        f"ml ab assign {experiment.name} KEY…",
    )
