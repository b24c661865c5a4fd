"""Waivers on 2025-06-01 of version 7; test_waivers.py has the evidence that they name."""

from __future__ import annotations


def waiver(gate: str | None, **fields: object) -> str:
    """A waiver of a gates.yml with these fields beside usual ones; None leaves a field out."""
    usual = {"gate": gate, "reason": "r", "owner": "ana", "expires": "2025-06-30"}
    stated = {name: value for name, value in {**usual, **fields}.items() if value is not None}
    return f"- {{{', '.join(f'{name}: {value}' for name, value in stated.items())}}}\n"


def _item(item: str, gate: str = "supply-chain", **fields: object) -> str:
    return waiver(gate, item=item, **fields)


GPL = "is GPL-3.0-only"
BLOCK = "- gate: supply-chain\n  item: PYSEC-1\n  reason: r\n  owner: ana\n  expires: 2025-06-30\n"

# Each sets aside the failure of its gate: the evidence, the gate, the waivers.
ALLOWED = {
    "too slow": ("too slow", "latency", waiver("latency", reason="a faster image comes")),
    "for this version": ("too slow", "latency", waiver("latency", version='"7"')),
    "a version written as a number": ("too slow", "latency", waiver("latency", version=7)),
    "the last day counts": ("too slow", "latency", waiver("latency", expires="2025-06-01")),
    "ninety days ahead": ("too slow", "latency", waiver("latency", expires="2025-08-30")),
    "the second of two holds": (
        "too slow",
        "latency",
        waiver("latency", expires="2025-05-31") + waiver("latency", owner="ben"),
    ),
    "stale evidence": ("stale", "freshness", waiver("freshness", reason="the data is the same")),
    "uncommitted code": (
        "uncommitted code for prod",
        "lineage",
        "".join(map(waiver, ("lineage", "latency", "fairness", "explainability"))),
    ),
    "a threshold that is missed": ("below the threshold", "quality", waiver("quality")),
    "the baseline not beaten": (
        "as good as the baseline",
        "first-promotion",
        waiver("first-promotion"),
    ),
    "worse than the champion": (
        "worse than the champion",
        "non-inferiority",
        waiver("non-inferiority", reason="the champion leaks"),
    ),
    "a gap that is known": ("chosen on luck", "gap", waiver("gap")),
    "an advisory that does not reach us": ("an advisory", "supply-chain", BLOCK),
    "two advisories and a licence, one by one": (
        "two advisories and a licence",
        "supply-chain",
        _item("PYSEC-1") + _item("PYSEC-2", owner="ben") + _item(f"b {GPL}"),
    ),
    "a pickle, in this version": (
        "a pickle",
        "format",
        _item("model.pkl", "format", version=7, reason="AutoML's"),
    ),
    "slices that lie apart": ("slices too far apart", "fairness", waiver("fairness")),
    "forecasts that seasonal naive may equal": (
        "no better than seasonal naive",
        "forecasting",
        waiver("forecasting"),
    ),
    "a feature that decides alone": (
        "one feature decides",
        "explainability",
        waiver("explainability"),
    ),
    "a feature that is as good as the label, and known beforehand": (
        "a leak",
        "leakage",
        _item("feature.auc balance", "leakage", version=7),
    ),
}

# None sets aside evidence that is not there: the evidence, the gate, its waiver.
MISSING = {
    "no latency": ("latency", waiver("latency")),
    "no date": ("freshness", waiver("freshness")),
    "from the future": ("freshness", waiver("freshness")),
    "no metrics": ("quality", waiver("quality")),
    "a metric that is NaN": ("quality", waiver("quality")),
    "no baseline": ("first-promotion", waiver("first-promotion")),
    "no lineage": ("lineage", waiver("lineage")),
    "a champion that was not scored": ("non-inferiority", waiver("non-inferiority")),
    "no validation": ("gap", waiver("gap")),
    "no packages": ("supply-chain", _item("PYSEC-1")),
    "no slices": ("fairness", waiver("fairness")),
    "no contributions": ("explainability", waiver("explainability")),
    "no file": ("format", _item("model.pkl", "format", version=7)),
    "nothing looked for": ("leakage", _item("feature.auc balance", "leakage")),
}

# The gate fails as it does without the waiver: the evidence, the gate, what its reason contains.
REFUSED = {
    "expired yesterday": (
        "too slow",
        "latency",
        "expired on 2025-05-31",
        waiver("latency", expires="2025-05-31"),
    ),
    "for longer than ninety days": (
        "too slow",
        "latency",
        "more than 90 days",
        waiver("latency", expires="2025-08-31"),
    ),
    "for another version": (
        "too slow",
        "latency",
        "for version 6",
        waiver("latency", version='"6"'),
    ),
    "for another gate": ("too slow", "latency", "", waiver("freshness")),
    "another advisory": ("an advisory", "supply-chain", "", _item("PYSEC-2")),
    "one of two advisories": (
        "two advisories and a licence",
        "supply-chain",
        "PYSEC-2",
        _item("PYSEC-1") + _item(f"b {GPL}"),
    ),
    "the licence, for another package": (
        "two advisories and a licence",
        "supply-chain",
        f"b {GPL}",
        _item("PYSEC-1") + _item("PYSEC-2") + _item(f"a {GPL}"),
    ),
    "one of two that expired": (
        "two advisories and a licence",
        "supply-chain",
        "expired",
        _item("PYSEC-1", expires="2025-05-31") + _item("PYSEC-2") + _item(f"b {GPL}"),
    ),
    "another file": ("a pickle", "format", "", _item("other.pkl", "format", version=7)),
    "a pickle of another version": (
        "a pickle",
        "format",
        "for version 6",
        _item("model.pkl", "format", version=6),
    ),
    "a leak of another feature": ("a leak", "leakage", "", _item("feature.auc age", "leakage")),
    **{
        evidence: (evidence, gate, "could not be evaluated", text)
        for evidence, (gate, text) in MISSING.items()
    },
}

# The file is refused at the last line of the waivers: what the problem contains.
INVALID = {
    "no owner": ("owner`", waiver("latency", owner=None)),
    "a blank owner": ("owner`", waiver("latency", owner='" "')),
    "no reason": ("reason`", waiver("latency", reason=None)),
    "a reason that is no text": ("reason`", waiver("latency", reason=3)),
    "no expiry, in the second": (
        "expires`",
        waiver("latency") + waiver("latency", expires=None),
    ),
    "it never expires": ("expires`", waiver("latency", expires="never")),
    "a day that does not exist": (
        "day is out of range",
        waiver("latency", expires="2025-06-31"),
    ),
    "a time of day": ("expires`", waiver("latency", expires="2025-06-30 12:00:00")),
    "no gate": ("gate`", waiver(None)),
    "an unknown gate": ("`gate`", waiver("latencyy")),
    "a list of gates": ("gate`", waiver("[latency]")),
    **{
        gate: (f"no waiver of `{gate}`", waiver(gate))
        for gate in ("identity", "verified-metrics", "completeness", "superiority", "sign-off")
    },
    "a format, and no file": ("`item`: the file", waiver("format", version=7)),
    "a file of any version": ("version`", _item("model.pkl", "format")),
    "all advisories at once": ("`item`: the advisory's id", waiver("supply-chain")),
    "a blank item": ("item`", _item('" "')),
    "an item of a gate that has none": ("no `item`", _item("p95", "latency")),
    "a blank version": ("version`", waiver("latency", version='""')),
    "an unknown field": ("until", waiver("latency", until="2025-06-30")),
    "a field twice": ("duplicate-key", waiver("latency, gate: quality")),
    "a name alone": ("a mapping", "- latency\n"),
}
