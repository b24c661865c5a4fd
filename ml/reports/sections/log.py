"""The end of the log of what failed."""

from __future__ import annotations

from ml.reports.facts import Facts
from ml.reports.markup import Html, tag
from ml.specs.repository import shown

# A line may be a whole matrix.
LONGEST = 500


def log(facts: Facts) -> Html | None:
    """None when nothing failed."""
    if not facts.log_of:
        return None
    run = facts.run if facts.log_of == facts.run.name else facts.run.trial(facts.log_of)
    lines = [line if len(line) <= LONGEST else f"{line[:LONGEST]}…" for line in facts.log]
    return tag(
        "section",
        tag("h2", f"The end of the log of {facts.log_of}"),
        tag("pre", "\n".join(lines) or "It printed nothing."),
        tag("p", f"The whole log: {shown(run.folder / 'logs' / 'std_log.txt')}", class_="note"),
    )
