"""What a newcomer reads of a model: how good it is, in words that need no glossary."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.promotion.evidence import Evidence

SPLITS = {
    "test_known": "new wordings of entries it knows",
    "test_unseen": "entries it has never seen",
}
METRICS = {
    "gain_at_1": ("right answer first", "{:.0%}"),
    "gain_at_3": ("right answer in the first three", "{:.0%}"),
    "mean_rank": ("mean place of the right answer", "{:.1f}"),
}


def quality(evidence: Evidence) -> None:
    """The table on stderr: ours beside the reference recipe, with 95 % intervals."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="On questions that training never saw", title_justify="left")
    for column in ("", "this model", "95 % interval", "reference recipe"):
        table.add_column(column)
    for split, of_split in SPLITS.items():
        table.add_section()
        table.add_row(f"[bold]{of_split}[/bold]")
        for metric, (title, form) in METRICS.items():
            ours = evidence.metrics.get(split, {}).get(metric)
            theirs = evidence.baseline.get(split, {}).get(metric)
            if ours is None or ours.value is None or ours.low is None or ours.high is None:
                continue
            other = "" if theirs is None or theirs.value is None else form.format(theirs.value)
            interval = f"{form.format(ours.low)} – {form.format(ours.high)}"
            table.add_row(f"  {title}", form.format(ours.value), interval, other)
    Console(stderr=True).print(table)
