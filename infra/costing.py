"""An estimate for reading: a table in text, and as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterator

from infra.estimate import LEFT_OUT, Estimate
from infra.pricing.months import START_MINUTES, Month
from infra.pricing.prices import Price
from infra.pricing.retail import AZURE


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
                "price": _price(line.price) if line.price else None,
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
    """Whose the prices are, from when, and in what they are not exact; each with its lines."""
    copied = (
        "copied by third parties and not Azure's own answer (`infra cost --refresh` asks for VMs)"
    )
    about: dict[str, list[str]] = {copied: []}
    remarks: dict[str, list[str]] = {}
    for line in estimate.lines:
        if line.price is None:
            continue
        if line.price.source != AZURE:
            about[copied].append(line.what)
        about.setdefault(f"from {line.price.source} ({line.price.as_of})", []).append(line.what)
        for remark in filter(None, line.price.note.split("; ")):
            remarks.setdefault(remark, []).append(line.what)
    for said, lines in (*remarks.items(), *about.items()):
        which = "all" if len(lines) == len(estimate.lines) else ", ".join(lines)
        if lines:
            yield f"prices {said}: {which}"


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


def _price(price: Price) -> dict[str, object]:
    names = ("unit", "region", "priority", "as_of", "source")
    return {"amount": round(price.amount, 6), **{name: getattr(price, name) for name in names}}


def _month(month: Month) -> dict[str, float]:
    return {name: round(getattr(month, name), 2) for name in ("idle", "typical", "worst")}


def _figures(month: Month, known: bool) -> tuple[str, str, str]:
    if not known:
        return "?", "?", "?"
    return f"{month.idle:,.0f}", f"{month.typical:,.0f}", f"{month.worst:,.0f}"
