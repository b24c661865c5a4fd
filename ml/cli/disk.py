"""Disk space: the limit, checked before a run and after every command that ran jobs, and
`ml runs clean`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import typer

from ml.backends.base import Backend
from ml.backends.storage import Cleaning, Storage, Usage
from ml.cli.options import repeated_on
from ml.cli.render.output import write_json, write_table
from ml.core import faults
from ml.core.errors import Exit, Problem, Refused
from ml.reports.formatting import size

# Runs named in the line about a removal, and rows of `ml runs clean`; --json has all.
RUNS, ROWS = 3, 20


def enforce(backend: Backend, say: Callable[[str], None], reads: Iterable[Path] = ()) -> None:
    """Remove outputs if the limit is exceeded; one line names them, or why none was removed.

    An unreadable registry does not stop a run. Nothing is removed then, because any output may
    still be needed.
    """
    cleaner = backend.storage.cleaner if backend.storage else None
    if cleaner is None or not (measured := cleaner.usage()).is_over:
        return
    from ml.release.versions import find_in_use

    try:
        with faults.as_refusals():
            eviction = cleaner.eviction(measured, find_in_use(backend), reads)
            # Outputs that became needed in between stay.
            current = cleaner.eviction(measured, find_in_use(backend), reads)
            freed, failures = cleaner.remove(eviction, current)
    except Refused as refused:
        why = refused.problems[0].found
        say(f"disk: {_usage_text(measured)}, and nothing can be removed: {why}")
        return
    say(_eviction_text(backend, measured, eviction, freed))
    for failure in failures:
        say(f"disk: {failure}")


def usage_text(storage: Storage) -> str:
    """The disk space in use, and the limit where there is one."""
    if storage.cleaner is None:
        return f"on the disk: {size(sum(storage.parts().values()))}"
    return f"on the disk: {_usage_text(storage.cleaner.usage())}"


def _usage_text(usage: Usage) -> str:
    if usage.limit is None:
        return f"{size(usage.taken)}, without a limit"
    return f"{size(usage.taken)} of at most {size(usage.limit)} ({usage.variable})"


def _eviction_text(backend: Backend, usage: Usage, eviction: Cleaning, freed: int) -> str:
    runs = [item.name for item in eviction.items if item.kind == "outputs"]
    others = len(eviction.items) - len(runs)
    removed = []
    if runs:
        more = f" and {len(runs) - RUNS} more" if len(runs) > RUNS else ""
        removed.append(f"the outputs of {', '.join(runs[:RUNS])}{more}")
    if others:
        removed.append(f"{others} unused cop{'ies' if others > 1 else 'y'}")
    text = f"removed {' and '.join(removed)}, {size(freed)}" if removed else "nothing can go"
    line = f"disk: {_usage_text(usage)}; {text}"
    if usage.limit is not None and usage.taken - freed > usage.limit:
        return f"{line}; the rest is needed or protected: {usage.variable} sets the limit"
    return f"{line}; ml runs keep RUN{repeated_on(backend.name)} protects a run"


def clean(
    backend: Backend,
    keep: int | None,
    before: float | None,
    experiment: str | None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Plan, show, ask, remove; see `ml runs clean --help`."""
    from ml.release.versions import find_in_use

    storage = backend.storage
    if storage is None or (cleaner := storage.cleaner) is None:
        found = f"runs of `{backend.name}` are not removed by this command"
        hint = "`az ml job archive --name NAME` hides one; what came here: rm -r .local/azure"
        problem = Problem("not-cleaned-here", found, "--on local", hint)
        raise Refused(problem, exit_code=Exit.CANNOT_HONOUR)

    def plan() -> Cleaning:
        with faults.as_refusals():
            return cleaner.cleaning(
                find_in_use(backend), keep=keep, older_than=before, experiment=experiment
            )

    cleaning, used = plan(), storage.parts()
    freed = cleaning.frees
    failures: list[str] = []
    if not as_json:
        _show(cleaning, used)
    if not dry_run and cleaning.items:
        if not yes:
            _ask(cleaning)
        # What became needed while the question was open stays.
        with faults.as_refusals():
            freed, failures = cleaner.remove(cleaning, plan())
    if as_json:
        removed = [
            {
                "kind": item.kind,
                "name": item.name,
                "bytes": item.size,
                "why": item.why,
                "paths": item.paths,
            }
            for item in cleaning.items
        ]
        document = {"dry_run": dry_run, "freed_bytes": freed, "removed": removed}
        write_json({**document, "stay": cleaning.stay, "used_bytes": used})
    elif not dry_run and cleaning.items:
        typer.echo(f"freed {size(freed)}", err=True)
    if failures:
        hint = "see who owns it: ls -l"
        problems = (Problem("not-removed", failure, hint=hint) for failure in failures)
        raise Refused(*problems, exit_code=Exit.RUN_FAILED)


def _show(cleaning: Cleaning, used: Mapping[str, int]) -> None:
    parts = ", ".join(f"{name} {size(taken)}" for name, taken in list(used.items())[:5])
    typer.echo(f"on the disk: {size(sum(used.values()))} ({parts})", err=True)
    if cleaning.items:
        rows = [[i.kind, i.name, size(i.size), i.why] for i in cleaning.items[:ROWS]]
        write_table(("kind", "name", "size", "reason"), rows)
    if len(cleaning.items) > ROWS:
        typer.echo(f"and {len(cleaning.items) - ROWS} more (--json has all)", err=True)
    for name, why in list(cleaning.stay.items())[:ROWS]:
        typer.echo(f"{name} stays: {why}", err=True)
    if len(cleaning.stay) > ROWS:
        typer.echo(f"{len(cleaning.stay) - ROWS} more stay (--json has all)", err=True)
    grace = f"copies used in the last {cleaning.grace_s / 60:.0f} minutes stay"
    if cleaning.items:
        typer.echo(f"this frees {size(cleaning.frees)}; {grace}", err=True)
    else:
        typer.echo(f"nothing to remove; {grace}; --keep N or --older-than 7d names runs", err=True)


def _ask(cleaning: Cleaning) -> None:
    if not sys.stdin.isatty():
        found = f"{len(cleaning.items)} things would be removed, and there is no terminal to ask"
        expected = "--yes, or --dry-run to change nothing"
        raise Refused(Problem("not-confirmed", found, expected, "add --yes to remove them"))
    typer.confirm("remove them?", abort=True, err=True)
