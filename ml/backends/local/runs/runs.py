"""Earlier runs: found by name, by id, or the latest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from ml.backends.base import Run
from ml.backends.local.resume.recovery import as_it_is
from ml.backends.local.runs import records
from ml.core import home
from ml.core.errors import Problem, Refused


def find(wanted: str, experiment: str | None = None) -> Run:
    """The run of that name or MLflow id, or the `latest` that was started (of the experiment).

    A trial is found by its own name (`calm_river_03_7`), a step by its own
    (`calm_river_03.prepare`). Raises Refused (exit code 2) when there
    is none.
    """
    found = [run for run in every() if experiment in {None, run.experiment}]
    if wanted == "latest":
        if found:
            return max(found, key=lambda run: run.started)
    else:
        for run in found:
            for one in (run, *run.below()):
                if wanted in {one.name, one.id}:
                    return one
    if records.is_torn(home.jobs() / PurePath(wanted).name):
        raise Refused(_torn(wanted))
    raise Refused(_none(wanted, experiment, found))


def every() -> Iterator[Run]:
    """Every run that left a record, in the order of their names; trials stay in their sweeps."""
    if not home.jobs().is_dir():
        return
    for folder in sorted(home.jobs().iterdir()):
        try:
            yield as_it_is(records.read(folder))
        except (OSError, ValueError, KeyError):
            # Being made at this moment, or killed before its first record.
            continue


def _torn(name: str) -> Problem:
    return Problem(
        "record-unreadable",
        f"{home.jobs() / name / records.FILE} cannot be read: the machine went off, or the disk "
        "was full, while it was written",
        "a whole record",
        f"ml runs resume {name} writes it anew and goes on, if it is a sweep or a pipeline",
    )


def _none(wanted: str, experiment: str | None, found: list[Run]) -> Problem:
    where = f" of the experiment `{experiment}`" if experiment else ""
    names = [run.name for run in sorted(found, key=lambda run: -run.started)][:5]
    return Problem(
        "no-such-run",
        f"there is no run `{wanted}`{where} on this machine",
        f"one of: {', '.join(names)}" if names else "a run: none has been made here yet",
        "start one: ml run SPEC" if not names else "`latest` names the last one",
    )
