"""A pipeline: its steps in the order in which they started."""

from __future__ import annotations

from collections.abc import Iterator

from ml.reports.facts import Facts, Step
from ml.reports.markup import Html, join, table, tag
from ml.reports.numbers import duration
from ml.reports.privacy import headline
from ml.reports.sections.sweep import sweep


def steps(facts: Facts) -> Html | None:
    """The table of steps and the sweeps among them; None when the run is no pipeline."""
    if not facts.steps:
        return None
    listed = tag(
        "section",
        tag("h2", "The steps"),
        table(
            ["step", "status", "took", "outputs", "why"], (list(_row(one)) for one in facts.steps)
        ),
    )
    swept = (
        sweep(one.sweep, one.selected, f"The sweep of step {one.name}")
        for one in facts.steps
        if one.sweep
    )
    return join([listed, *swept])


def _row(step: Step) -> Iterator[object]:
    run = step.run
    kind = {"Completed": "good", "Failed": "bad"}.get(run.status, "open")
    yield step.name
    yield tag("td", run.status, class_=kind)
    yield tag("td", duration(run.ended - run.started) if run.ended else "", class_="n")
    yield ", ".join(run.outputs)
    if run.error:
        yield f"{run.error.code}: {headline(run.error)}"
    else:
        yield f"taken over from {run.reused_from}" if run.reused_from else run.ended_by
