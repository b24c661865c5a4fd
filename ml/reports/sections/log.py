"""The end of the log of what failed."""

from __future__ import annotations

from ml.core.repository import shown
from ml.reports.facts import Facts
from ml.reports.markup import Html, tag

# A line may be a whole matrix.
LONGEST = 500


def log(facts: Facts) -> Html | None:
    """None when nothing failed."""
    run = facts.told
    if run is None:
        return None
    lines = [line if len(line) <= LONGEST else f"{line[:LONGEST]}…" for line in facts.log]
    return tag(
        "section",
        tag("h2", f"The end of the log of {run.name}"),
        tag("pre", "\n".join(lines) or "It printed nothing."),
        tag("p", f"The whole log: {shown(run.folder / 'logs' / 'std_log.txt')}", class_="note"),
    )
