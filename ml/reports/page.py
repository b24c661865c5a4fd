"""The page: sections in their order, one style, one small script, and nothing from outside."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from pathlib import Path

from ml.reports.facts import Facts
from ml.reports.markup import Html, tag
from ml.reports.sections.gates import gates, latency
from ml.reports.sections.job import job
from ml.reports.sections.lineage import lineage
from ml.reports.sections.log import log
from ml.reports.sections.quality import quality
from ml.reports.sections.steps import steps
from ml.reports.sections.summary import problems, summary
from ml.reports.sections.sweep import sweep

_STYLE = Path(__file__).with_name("page.css")
_SCRIPT = Path(__file__).with_name("page.js")


def page(facts: Facts) -> str:
    """One HTML document. Its own policy lets a browser load nothing and run no other script."""
    return document(
        f"{facts.run.name} · {facts.run.experiment}",
        summary(facts),
        tag(
            "main",
            problems(facts),
            log(facts) if facts.run.error else None,
            steps(facts),
            sweep(facts.sweep, facts.selected) if facts.sweep else job(facts),
            log(facts) if not facts.run.error else None,
            quality(facts),
            gates(facts),
            latency(facts),
            lineage(facts),
        ),
        f"by ml report {facts.run.name}; run {facts.run.id}.",
    )


def document(title: str, header: Html, main: Html, written: str) -> str:
    """A whole page of these parts; `written` says by whom, at its foot."""
    style, script = (Html(path.read_text(encoding="utf-8")) for path in (_STYLE, _SCRIPT))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", style),
    )
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    foot = tag("footer", f"Written {now} {written}")
    body = tag("body", header, main, foot, tag("script", script))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
