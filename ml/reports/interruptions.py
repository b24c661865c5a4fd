"""What of a run did not go in one piece: evictions, stops after which it was resumed, parts that
were cut off and done again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from ml.backends.base import Run
from ml.backends.local.outcome import REASONS
from ml.reports.numbers import count, duration

# (start, end), in seconds since the run began.
Span = tuple[float, float]
_WHY = {
    **REASONS,
    "executor-gone": "the program that ran it was killed",
    "disk-full": "the disk was full",
    "timeout": "its time was used up",
    "sweep_timeout": "the time of the sweep was used up",
    "sweep_failed": "the sweep could not go on",
}


@dataclass(frozen=True)
class Happening:
    """Something that broke off the work on a part, `at` seconds after the run began."""

    at: float
    part: str
    what: str


@dataclass(frozen=True)
class Interrupted:
    """A run or a part of one: when it was worked on, in vain where that counts for nothing
    (`again`), and when it was evicted."""

    part: str
    worked: tuple[Span, ...]
    again: tuple[Span, ...]
    evicted: tuple[float, ...]
    happened: tuple[Happening, ...]


def interrupted(run: Run) -> tuple[Interrupted, ...]:
    """The run and its parts that were interrupted, in the order of their starts."""
    parts = sorted((run, *run.below()), key=lambda part: part.started)
    return tuple(_of(part, run) for part in parts if part.restarts or part.pauses or part.former)


def sentence(run: Run) -> str:
    """What broke it off, counted; "" when nothing did."""
    parts = [run, *run.below()]
    evictions = sum(len(part.restarts) for part in parts)
    again = sum(len(part.former) for part in parts)
    said = []
    if evictions:
        said.append(f"evicted {_times(evictions)} and started again each time")
    if run.pauses:
        still = sum(pause.until - pause.since for pause in run.pauses)
        said.append(f"stopped {_times(len(run.pauses))} and resumed ({duration(still)} between)")
    if again:
        said.append(f"{count(again, 'part')} of it cut off and done again")
    return f"On the way it was {', '.join(said)}." if said else ""


def _of(part: Run, run: Run) -> Interrupted:
    end = part.ended or time.time()
    breaks = [(pause.since, pause.until) for pause in part.pauses]
    breaks += [(at, at) for at in part.restarts]
    edges = [part.started, *(edge for one in sorted(breaks) for edge in one), end]
    worked = tuple(zip(edges[::2], edges[1::2], strict=True))
    again = tuple((one.started, one.ended or one.started) for one in part.former)
    below = part.name.removeprefix(run.name)
    name = f"trial {below[1:]}" if below.startswith("_") else below.lstrip(".") or run.name
    since = run.started
    return Interrupted(
        name,
        tuple((begin - since, stop - since) for begin, stop in worked),
        tuple((begin - since, stop - since) for begin, stop in again),
        tuple(at - since for at in part.restarts),
        tuple(sorted(_happened(part, name, since), key=lambda one: one.at)),
    )


def _happened(part: Run, name: str, since: float) -> Iterator[Happening]:
    began = part.started
    for number, at in enumerate(part.restarts, 1):
        yield Happening(
            at - since,
            name,
            f"evicted after {duration(at - began)} of work, started again (restart {number})",
        )
        began = at
    for pause in part.pauses:
        still = duration(pause.until - pause.since)
        yield Happening(pause.since - since, name, f"{_why(pause.ended_by)}; resumed after {still}")
    for one in part.former:
        ended, reason = one.ended or one.started, one.error.code if one.error else ""
        lost = duration(ended - one.started)
        why = _why(one.ended_by or reason)
        yield Happening(ended - since, name, f"{why}, after {lost} of work; done again")


def _why(reason: str) -> str:
    return _WHY.get(reason, reason or "it was stopped")


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")
