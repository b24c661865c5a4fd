"""Evictions, stops and second attempts: when they were, and what they cost."""

from __future__ import annotations

import time

from ml.reports.charts.timeline import timeline
from ml.reports.facts import Facts
from ml.reports.interruptions import interrupted
from ml.reports.markup import Html, table, tag
from ml.reports.numbers import count, duration

# Parts that are drawn, and happenings that are listed.
DRAWN, LISTED = 20, 60


def interruptions(facts: Facts) -> Html | None:
    """The timeline of what was interrupted, and each interruption; None without any."""
    run = facts.run
    found = interrupted(run)
    if not found:
        return None
    happened = sorted((one for part in found for one in part.happened), key=lambda one: one.at)
    rows = [
        [tag("td", f"+{duration(one.at)}", class_="n"), one.part, one.what]
        for one in happened[:LISTED]
    ]
    left, undrawn = len(happened) - LISTED, len(found) - DRAWN
    return tag(
        "section",
        tag("h2", "Interruptions"),
        timeline(found[:DRAWN], (run.ended or time.time()) - run.started),
        tag("p", f"and {count(undrawn, 'more part')}", class_="note") if undrawn > 0 else None,
        table(["when", "part", "what happened"], rows),
        tag("p", f"and {count(left, 'more interruption')}", class_="note") if left > 0 else None,
    )
