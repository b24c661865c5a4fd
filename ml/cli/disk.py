"""Implement `ml runs clean`."""

from __future__ import annotations

import sys

import typer

from ml.backends.base import Backend
from ml.backends.storage import Cleaning
from ml.cli.render.output import write_json, write_table
from ml.core import faults
from ml.core.errors import Exit, Problem, UserError
from ml.reports.formatting import size

# Maximum number of printed rows; --json has all.
ROWS = 20


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
    """Show what to remove, ask for confirmation, and remove it; see `ml runs clean --help`."""
    from ml.release.versions import find_in_use

    if (cleaner := backend.cleaner) is None:
        actual = f"runs of `{backend.name}` are not removed by this command"
        hint = "hide one: az ml job archive --name NAME; remove downloads: rm -r .local/azure"
        problem = Problem("not-cleaned-here", actual, "--on local", hint)
        raise UserError(problem, exit_code=Exit.CANNOT_HONOUR)

    def plan() -> Cleaning:
        with faults.as_user_errors():
            return cleaner.cleaning(
                find_in_use(backend), keep=keep, older_than=before, experiment=experiment
            )

    cleaning = plan()
    freed = cleaning.frees
    failures: list[str] = []
    if not as_json:
        _show(cleaning)
    if not dry_run and cleaning.items:
        if not yes:
            _ask(cleaning)
        # Plan again, to keep items that came into use while the prompt was open.
        with faults.as_user_errors():
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
        write_json({**document, "stay": cleaning.stay})
    elif not dry_run and cleaning.items:
        typer.echo(f"freed {size(freed)}", err=True)
    if failures:
        hint = "see who owns it: ls -l"
        problems = (Problem("not-removed", failure, hint=hint) for failure in failures)
        raise UserError(*problems, exit_code=Exit.RUN_FAILED)


def _show(cleaning: Cleaning) -> None:
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
        actual = f"{len(cleaning.items)} items would be removed, and no terminal can confirm it"
        expected = "--yes, or --dry-run to change nothing"
        raise UserError(Problem("not-confirmed", actual, expected, "add --yes to remove them"))
    typer.confirm("remove them?", abort=True, err=True)
