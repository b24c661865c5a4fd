"""An estimate for reading: a table in text, and as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterator

from infra.estimate import LEFT_OUT, Estimate
from infra.pricing.months import START_MINUTES, Month


def as_json(estimate: Estimate) -> dict[str, object]:
    """Everything that the text says, for a program."""
    return {
        "environment": estimate.environment,
        "currency": estimate.currency,
        "month": _month(estimate.total),
        "complete": not estimate.unpriced,
        "not_priced": [*estimate.unpriced, *LEFT_OUT],
        "lines": [
            {
                "what": line.what,
                "basis": line.basis,
                "month": _month(line.month) if line.price else None,
                "source": line.price.source if line.price else None,
                "notes": line.notes,
            }
            for line in estimate.lines
        ],
        "one_node_that_stands": [
            {
                "cluster": one.cluster,
                "none": _month(one.at_zero),
                "one": _month(one.at_one),
                "hours_saved": round(one.waiting_hours, 2),
            }
            for one in estimate.alternatives
        ],
    }


def as_text(estimate: Estimate) -> str:
    """A table: a line a thing, the total, and what one standing node would change."""
    rows = [("a month in " + estimate.currency, "idle", "typical", "worst", "")]
    for line in estimate.lines:
        rows.append((line.what, *_figures(line.month, line.price is not None), line.basis))
    label = "at least" if estimate.unpriced else "total"
    rows.append((label, *_figures(estimate.total, True), ""))
    width = max(len(row[0]) for row in rows)
    text = [f"{estimate.environment}"]
    for what, idle, typical, worst, basis in rows:
        text.append(f"  {what:<{width}}  {idle:>8}  {typical:>8}  {worst:>8}  {basis}".rstrip())
    return "\n".join((*text, *_remarks(estimate)))


def dated(estimate: Estimate) -> Iterator[str]:
    """Each date and remark of the prices, with the lines that it is about."""
    about: dict[str, list[str]] = {}
    for line in estimate.lines:
        if line.price is not None:
            about.setdefault(line.notes, []).append(line.what)
    if len(about) == 1:
        yield f"prices {next(iter(about))}"
    else:
        yield from (f"prices {note}: {', '.join(lines)}" for note, lines in sorted(about.items()))


def _remarks(estimate: Estimate) -> Iterator[str]:
    if estimate.unpriced:
        yield f"  no price known: {', '.join(estimate.unpriced)}; `infra cost --refresh` asks Azure"
    yield from (f"  {note}" for note in dated(estimate))
    yield f"  not in it: {'; '.join(LEFT_OUT)}"
    for one in estimate.alternatives:
        more = one.at_one.typical - one.at_zero.typical
        yield (
            f"  {one.cluster}: a node that stands would cost {more:,.0f} more in a typical month"
            f" and save {one.waiting_hours:.1f} h of waiting ({START_MINUTES:g} minutes a job)"
        )


def _month(month: Month) -> dict[str, float]:
    return {name: round(getattr(month, name), 2) for name in ("idle", "typical", "worst")}


def _figures(month: Month, known: bool) -> tuple[str, str, str]:
    if not known:
        return "?", "?", "?"
    return f"{month.idle:,.0f}", f"{month.typical:,.0f}", f"{month.worst:,.0f}"
