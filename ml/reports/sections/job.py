"""A command job: what it was given, what it logged."""

from __future__ import annotations

from ml.reports.charts.curves import SMALL, single
from ml.reports.facts import Facts
from ml.reports.markup import Html, join, table, tag
from ml.reports.numbers import count, number, short
from ml.reports.privacy import shown

# Metrics of the table; a script may log thousands.
METRICS = 200


def job(facts: Facts) -> Html | None:
    """Parameters, metrics and their curves; None when there is none of them."""
    run = facts.run
    parts: list[Html] = []
    if run.parameters:
        given = [[name, short(shown(name, value))] for name, value in run.parameters.items()]
        parts += [tag("h3", "Parameters"), table(["parameter", "value"], given)]
    if run.metrics:
        last = list(run.metrics.items())
        logged = [
            [name, tag("td", number(value), title=repr(value), class_="n")]
            for name, value in last[:METRICS]
        ]
        parts += [tag("h3", "Metrics"), table(["metric", "last value"], logged)]
        if len(last) > METRICS:
            parts.append(tag("p", f"{METRICS} of {len(last)} metrics.", class_="note"))
    drawn = [one for name, curve in facts.curves.items() if (one := single(name, curve))]
    if drawn:
        more = len(drawn) - SMALL
        parts += [
            tag("h3", "Learning curves"),
            tag("div", *drawn[:SMALL], class_="grid2"),
        ]
        if more > 0:
            parts.append(tag("p", f"and {count(more, 'more curve')} in MLflow", class_="note"))
    return tag("section", tag("h2", "The job"), join(parts)) if parts else None
