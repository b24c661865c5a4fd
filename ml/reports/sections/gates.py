"""The gates' last decision about the version, and the latency that they were shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml.reports.facts import Facts
from ml.reports.markup import Html, table, tag
from ml.reports.numbers import number
from policies.promotion.evidence import Latency

SIGNS = {"pass": "✓", "fail": "✗", "waived": "!", "pending": "…", "not asked": "–"}
CLASSES = {"pass": "good", "fail": "bad", "waived": "open", "pending": "open", "not asked": "dim"}
# Text of one cell: what was found may be a traceback.
LONGEST = 400


def gates(facts: Facts) -> Html | None:
    """None when the model is not registered or the gates were never asked."""
    release = facts.release
    if release is None or release.decision is None:
        return None
    request = release.decision.get("request") or {}
    champion = release.decision.get("champion")
    against = f"against champion {champion}" if champion else "no champion to compare with"
    who = f", approved by {request['approved_by']}" if request.get("approved_by") else ""
    reason = f", reason: {request['reason']}" if request.get("reason") else ""
    when = release.decided[:16].replace("T", " ")
    asked = (
        f"{release.name} for {request.get('environment', '')}, {against}: "
        f"{release.decision.get('outcome', '')}{who}{reason}. Decided {when} UTC."
    )
    return tag(
        "section",
        tag("h2", "Gates"),
        tag("p", asked, class_="note"),
        table(
            ["", "gate", "verdict", "found", "required", "why"],
            (_row(result) for result in release.decision.get("results", ())),
        ),
    )


def _row(result: Mapping[str, Any]) -> list[object]:
    verdict = str(result.get("verdict", ""))
    mode = str(result.get("mode", ""))
    kind = CLASSES.get(verdict, "dim")
    said = verdict if mode == "enabled" else f"{verdict} ({mode})"
    return [
        tag("td", SIGNS.get(verdict, "?"), class_=f"sign {kind}"),
        tag("td", result.get("gate", ""), class_="whole"),
        tag("td", said, class_=f"{kind} whole"),
        *(str(result.get(key, ""))[:LONGEST] for key in ("found", "required", "why")),
    ]


def latency(facts: Facts) -> Html | None:
    """None when nothing was measured."""
    found = facts.release.evidence.latency if facts.release else Latency()
    if found.p50_ms is None and found.p95_ms is None:
        return None
    measured = [
        ("half of the requests", found.p50_ms),
        ("95 of 100", found.p95_ms),
        ("99 of 100", found.p99_ms),
    ]
    asked = number(found.requests) if found.requests is not None else "an unknown number of"
    where = f"{asked} warm requests, one after the other, on {found.hardware or 'unnamed hardware'}"
    meant = f"; the deployment asks for {found.instance_type}" if found.instance_type else ""
    return tag(
        "section",
        tag("h2", "Latency"),
        tag("p", f"{where}{meant}.", class_="note"),
        table(
            ["answered within", "milliseconds"],
            (
                [name, tag("td", number(value), class_="n")]
                for name, value in measured
                if value is not None
            ),
        ),
    )
