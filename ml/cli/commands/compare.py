"""`ml compare`: a candidate beside the champion, as a pull-request comment or for a terminal."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ml.backends.choice import open_backend

if TYPE_CHECKING:
    from ml.backends.base import Event
    from ml.release.comparison.compare import Compared
    from ml.release.comparison.comparison import Amount, Row
    from policies.promotion.evidence import Estimate


def command(
    candidate: Annotated[str, typer.Argument(help="MODEL:VERSION, a run, or champion@ENV.")],
    champion: Annotated[
        str | None, typer.Argument(help="The same; without it, the environment's champion.")
    ] = None,
    form: Annotated[
        Literal["text", "md", "json"],
        typer.Option("--format", help="text for people, md for a pull request, json for programs."),
    ] = "text",
    to: Annotated[
        str | None, typer.Option("--env", "--to", help="Default: that of champion@ENV, else local.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(help="Write the picture of the differences there, as SVG.")
    ] = None,
    chart_url: Annotated[
        str, typer.Option(help="Where that file can be seen: md shows it in place of letters.")
    ] = "",
    report_url: Annotated[str, typer.Option(help="The run's report, to link in md.")] = "",
    repository: Annotated[
        str, typer.Option(help="https://…/OWNER/NAME, to link commits in md.")
    ] = "",
) -> None:
    """Metrics with paired intervals, slices, gates, latency, cost, lineage. Decides nothing."""
    from ml.cli.render import json_out
    from ml.core import files
    from ml.release.comparison.compare import versus
    from ml.reports.charts.forest import svg_file
    from ml.reports.comment import comment, forest_rows

    found = versus(open_backend(), candidate, champion, to, _watch)
    if chart is not None:
        title = f"{found.comparison.primary}: candidate minus champion"
        files.replace(chart, svg_file(forest_rows(found.comparison), title))
    if form == "json":
        json_out.write(document(found))
    elif form == "md":
        links = {"report": report_url} if report_url else {}
        typer.echo(comment(found, repository or _repository(), chart_url, links), nl=False)
    else:
        _print_comparison(found)


def document(found: Compared) -> dict[str, Any]:
    """The comparison for a program."""
    from ml.cli.render import json_out

    made = found.comparison

    def estimate(of: Estimate | None) -> Any:
        return json_out.plain(asdict(of)) if of else None

    def row(of: Row) -> dict[str, Any]:
        return {
            "place": of.place,
            "metric": of.metric,
            "candidate": estimate(of.ours),
            "champion": estimate(of.theirs),
            "difference": asdict(of.by) if of.by else None,
            "verdict": of.verdict or None,
        }

    return {
        "model": found.model,
        "environment": found.environment,
        "candidate": {"name": made.candidate.name, "digest": made.candidate.digest},
        "champion": (
            {"name": made.champion.name, "digest": made.champion.digest} if made.champion else None
        ),
        "primary_metric": made.primary,
        "metrics": [row(one) for one in made.metrics],
        "slices": [row(one) for one in made.slices],
        "amounts": [asdict(one) for one in made.amounts],
        "decision": found.decision.to_json() if found.decision else None,
        "lineage": asdict(made.candidate.evidence.lineage),
        "missing": list(made.missing),
        "unpaired": made.unpaired or None,
        "notes": list(found.notes),
    }


def _print_comparison(found: Compared) -> None:
    from ml.cli.render import tables, verdicts
    from ml.reports.charts.forest import text_plot
    from ml.reports.comment import forest_rows

    made = found.comparison
    head = ["metric", "on", made.candidate.name]
    head += [made.champion.name, "difference"] if made.champion else []
    tables.write(head, [_row(one, made.champion is not None) for one in made.metrics])
    if drawn := forest_rows(made):
        typer.echo(f"\n{tables.plain(made.primary)}, candidate minus champion")
        for line in text_plot(drawn):
            typer.echo(line)
    typer.echo("")
    head = ["", made.candidate.name, *([made.champion.name] if made.champion else [])]
    tables.write(head, [_amount(one, made.champion is not None) for one in made.amounts])
    if found.decision:
        verdicts.show(found.decision)
    if made.unpaired:
        typer.echo(f"note: not compared unit by unit: {made.unpaired}", err=True)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    if made.missing:
        typer.echo(f"missing from the evidence: {', '.join(made.missing)}", err=True)


def _row(row: Row, against: bool) -> list[str]:
    from ml.reports.formatting import number, signed

    def shown(of: Estimate | None) -> str:
        return "missing" if of is None or of.value is None else number(of.value)

    cells = [row.metric, row.place, shown(row.ours)]
    if not against:
        return cells
    by = row.by
    said = f"{signed(by.mean)} ({signed(by.low)} to {signed(by.high)})" if by else "not paired"
    return [*cells, shown(row.theirs), f"{said} {row.verdict}".rstrip()]


def _amount(one: Amount, against: bool) -> list[str]:
    from ml.reports.formatting import number

    values = [one.ours, one.theirs] if against else [one.ours]
    return [
        one.what,
        *("missing" if v is None else f"{number(v)} {one.unit}".rstrip() for v in values),
    ]


def _repository() -> str:
    """Where a workflow runs, in the variables that GitHub sets."""
    server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    return f"{server}/{name}" if server and name else ""


def _watch(event: Event) -> None:
    if event.kind == "started":
        typer.echo(f"scoring the champion again ({event.run.folder})", err=True)
